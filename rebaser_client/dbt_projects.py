"""dbt projects as graphs: models and tests are queries, seeds are tables.

What is read is `target/manifest.json`, as `dbt compile` writes it; dbt itself is not needed. SQL
compiled for Spark stays as it is, but for the names of relations; that of DuckDB is translated,
by `dbt_sql`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Final

from rebaser_client.csv_files import read_csv_table
from rebaser_client.display import package
from rebaser_client.draft import Draft, Source, sql
from rebaser_client.errors import InvalidDraft
from rebaser_core.errors import many
from rebaser_core.table_values import upload_value

_NO_WORD: Final = re.compile(r"\W", re.ASCII)
_TYPES: Final = {
    "INT": "int64",
    "DOUBLE": "float64",
    "FLOAT": "float64",
    "BOOLEAN": "bool_",
    "CHAR": "string",
    "TEXT": "string",
    "DATE": "date32",
}
"""Ends of types in SQL, by sqlglot's names, and Arrow's types for them."""
_DIALECTS: Final = {
    **dict.fromkeys(("spark", "glue", "fabricspark"), "spark"),
    "databricks": "databricks",
    "duckdb": "duckdb",
}
"""Dialects of the SQL that is read, by dbt's adapters."""
_SHOWN: Final = 100
"""Mistakes that a message lists."""
_BLOCK: Final = re.compile(r"\{%-?\s*if\s+is_incremental\(\).*?%\}(.*?)(?=\{%)", re.DOTALL)
_JINJA: Final = re.compile(r"\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
_LINE: Final = re.compile(r"^line \d+, column \d+: ")
_PARTLY: Final = (
    "it reads itself, or was compiled for its new rows alone: compile it as a whole, with "
    "`dbt compile --full-refresh`"
)
_RELATION: Final = "model, seed or source of the project"

Judge = Callable[[str, Collection[str]], None]
"""Judge of SQL: raises `InvalidDraft` for a query with these arguments that is not run."""


def is_manifest(data: Any) -> bool:
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return isinstance(metadata, dict) and "dbt_schema_version" in metadata


def read_manifest(data: Mapping[str, Any], path: Path, judge: Judge | None = None) -> Draft:
    """Return the draft of the project whose manifest lies at `path`. Blocks.

    A model is a table by its name, and so is a seed, read from its CSV file. A test is the number
    of rows that fail it, as `test/<name>`. A source is read from the value `<source>/<table>`,
    which is in the change set already. An enforced contract is declared with the query.

    Raises:
        InvalidDraft: parts of the project cannot be values; the message names each.
        MissingPackage: sqlglot or pyarrow is not installed.
        OSError: the file of a seed cannot be read.
    """
    return _Project(data, path, judge).draft()


class _Mistakes(Exception):
    def __init__(self, mistakes: list[str]) -> None:
        super().__init__(*mistakes)
        self.mistakes: Final = mistakes


class _Project:
    def __init__(self, data: Mapping[str, Any], path: Path, judge: Judge | None) -> None:
        self._glot = package("sqlglot", extra="server")
        self._nodes: Mapping[str, Any] = data.get("nodes") or {}
        self._sources: Mapping[str, Any] = data.get("sources") or {}
        self._root = path.absolute().parent.parent
        self._judge = judge
        self._draft = Draft()
        self._first: dict[str, Mapping[str, Any]] = {}
        """Nodes by the names of their values."""
        self._columns: dict[str, Mapping[str, Any]] = {}
        """Types of the columns of what was defined, by ids."""
        adapter = data["metadata"].get("adapter_type")
        if adapter not in _DIALECTS:
            raise InvalidDraft(
                f"models compiled for {adapter!r} are not taken over: those for Spark (the "
                "adapters spark, databricks, glue and fabricspark) are, as they are, and those for "
                "duckdb, translated. Compile the project with a profile of one of these"
            )
        self._dialect: str = _DIALECTS[adapter]

    def draft(self) -> Draft:
        mistakes: list[tuple[str, str]] = []
        refused: set[str] = set()
        for name in self._ordered():
            node = self._nodes[name]
            found = [*self._define(node)]
            if refused & {*self._parents(node)}:  # types may be unknown for that alone
                refused.add(name)
                found = [each for each in found if "unknown type" not in each]
            if found:
                refused.add(name)
            mistakes += [(f"{node['resource_type']} {_name_of(node)}", each) for each in found]
        if mistakes:
            what = many(len({part for part, _ in mistakes}), "part")
            listed = "\n".join(f"  {part}: {mistake}" for part, mistake in mistakes[:_SHOWN])
            rest = "\n  …" if len(mistakes) > _SHOWN else ""
            if "unknown type" in listed:
                rest += (
                    "\ntypes are known of seeds, and of a source whose columns have a `data_type`"
                )
            raise InvalidDraft(f"{what} of the dbt project cannot be values:\n{listed}{rest}")
        if not self._draft.definitions:
            raise InvalidDraft("the dbt project has no model, seed or test")
        return self._draft

    def _ordered(self) -> Iterator[str]:
        """Return the ids of all nodes, each behind what it reads."""
        nodes = self._nodes.items()
        graph = {name: {*node["depends_on"]["nodes"]} - {name} for name, node in nodes}
        try:
            return (name for name in TopologicalSorter(graph).static_order() if name in self._nodes)
        except CycleError as error:
            raise InvalidDraft(f"models read each other: {', '.join(error.args[1])}") from error

    def _define(self, node: Mapping[str, Any]) -> Iterator[str]:
        """Define the node's value, if it has one; yield the reasons if it cannot."""
        kind, config = node["resource_type"], node["config"]
        if kind == "operation":
            yield "on-run-start and on-run-end are not run: take it out of dbt_project.yml"
        if kind not in ("seed", "snapshot", "model", "test"):
            return
        for hook in ("pre-hook", "post-hook"):
            if config.get(hook) or config.get(hook.replace("-", "_")):
                yield f"its {hook} is not run: take it out"
        if kind == "snapshot":
            yield "snapshots are not taken over: every commit of a change set stays readable"
        elif config.get("materialized") == "ephemeral":
            return  # dbt has put it into its readers
        elif (other := self._first.setdefault(_name_of(node), node)) is not node:
            whence = [
                f"{n['unique_id'].split('.')[1]} ({n['original_file_path']})" for n in (other, node)
            ]
            yield f"two parts have this name, of {' and '.join(whence)}: rename one"
        elif kind == "seed":
            if mistake := self._define_seed(node):
                yield mistake
        else:
            yield from self._define_query(node)

    def _define_seed(self, node: Mapping[str, Any]) -> str | None:
        pa, config = package("pyarrow", extra="arrow"), node["config"]
        file = Path(node.get("root_path") or self._root, node["original_file_path"])
        if not file.exists():  # compiled elsewhere
            file = self._root / node["original_file_path"]
        try:
            kinds = {
                name.casefold(): self._arrow_type(pa, kind)
                for name, kind in (config.get("column_types") or {}).items()
            }
            times = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
            more = {pa.bool_(): "(?i:true|false)", **dict.fromkeys(times, "")}
            # The types of a folder's seeds name columns that not all of them have.
            kind_of = lambda name: kinds.get(name.casefold())  # noqa: E731
            table = read_csv_table(file, kind_of, more, config.get("delimiter") or ",")
            self._draft.table(_name_of(node), table)
        except (InvalidDraft, self._glot.errors.SqlglotError, ValueError) as error:
            words = str(error).splitlines()[0].removeprefix(f"{file}: ")
            return f"{file}: {words:.300}"
        return None

    def _arrow_type(self, pa: Any, text: str) -> Any:
        kind = self._glot.exp.DataType.build(text, dialect=self._dialect)
        name = kind.this.name
        if name == "DECIMAL":
            # That of DuckDB is parsed with its digits.
            return pa.decimal128(*[int(each.name) for each in kind.expressions] or [10, 0])
        if name.startswith("TIMESTAMP"):
            return pa.timestamp("us", "UTC" if name in ("TIMESTAMPTZ", "TIMESTAMPLTZ") else None)
        found = next((arrow for end, arrow in _TYPES.items() if name.endswith(end)), None)
        if found is None:
            raise ValueError(f"a column of the type {text!r} is not taken over")
        return getattr(pa, found)()

    def _define_query(self, node: Mapping[str, Any]) -> list[str]:
        name, is_test = _name_of(node), node["resource_type"] == "test"
        code = node.get("compiled_code") or ""
        if mistake := _unusable(node, code):
            return [mistake]
        if is_test:
            count = node["config"].get("fail_calc") or "count(*)"
            code = f"SELECT {count} FROM ({code.rstrip().removesuffix(';')}\n) AS failures"  # noqa: S608
        try:
            text, inputs = self._query(code, node)
        except _Mistakes as error:
            return error.mistakes
        except (self._glot.errors.SqlglotError, RecursionError) as error:
            return [f"its SQL cannot be read: {str(error).splitlines()[0]:.200}"]
        except InvalidDraft as error:  # of the judge, whose lines are those of its text
            return [_LINE.sub("", str(error)) if self._dialect == "duckdb" else str(error)]
        if text.lstrip().startswith("--"):
            text = f"/* dbt */ {text}"  # so that a comment declares nothing
        if is_test:
            text = f"-- returns: value\n{text}"
        elif node["config"].get("contract", {}).get("enforced"):
            text = self._declarations(node) + text
        self._draft.value(name, sql(text, name=name), **inputs)
        return []

    def _query(self, code: str, node: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Return the query for Spark, and its inputs. Raises `_Mistakes`, or as the judge."""
        text, inputs = self._with_inputs(code, node)
        if self._dialect == "duckdb":
            module = package("rebaser_client.dbt_sql", extra="server")
            parents = {_name_of(parent): parent for parent in self._parents(node).values()}
            done = module.Translation(
                self._parsed(text),
                {argument: self._columns_of(parents[value]) for argument, value in inputs.items()},
                named=node["resource_type"] == "model",
            )
            self._columns[_name_of(node)] = done.columns
            if done.mistakes:
                raise _Mistakes(done.mistakes)
            text = done.text()
        if self._judge is not None:
            self._judge(text, inputs)
        return text, inputs

    def _columns_of(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the types of the columns of a relation, as far as they are known."""
        name, build = _name_of(node), self._glot.exp.DataType.build
        if node["resource_type"] == "source":
            declared = (node.get("columns") or {}).values()
            kinds = {each["name"]: each.get("data_type") or "unknown" for each in declared}
            kinds["*"] = "unknown"  # it may have more than are described
            return {name: build(kind, dialect=self._dialect) for name, kind in kinds.items()}
        if node["resource_type"] == "seed" and name not in self._columns:
            source = self._draft.definitions.get(name)
            files = [
                upload.file
                for digest, upload in self._draft.uploads.items()
                if isinstance(source, Source) and source.value == upload_value(digest)
            ]
            parquet = package("pyarrow.parquet", extra="arrow")
            spark_fields = package("rebaser_core.table_schemas", extra="arrow").spark_fields
            fields = [field for file in files for field in spark_fields(parquet.read_schema(file))]
            self._columns[name] = {f["name"]: build(f["type"], dialect="spark") for f in fields}
        return self._columns.get(name, {})

    def _parents(self, node: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """Return what a query may read, by ids; ephemeral models are a part of it."""
        found: dict[str, Mapping[str, Any]] = {}
        waiting = [*node["depends_on"]["nodes"]]
        while waiting:
            name = waiting.pop()
            parent = self._nodes.get(name) or self._sources.get(name)
            if parent is not None and name not in found:
                found[name] = parent
                if parent.get("config", {}).get("materialized") == "ephemeral":
                    waiting += parent["depends_on"]["nodes"]
        return found

    def _parsed(self, code: str) -> Any:
        found = [each for each in self._glot.parse(code, dialect=self._dialect) if each is not None]
        if len(found) != 1 or not isinstance(found[0], self._glot.exp.Query):
            raise _Mistakes(["it is not exactly one query"])
        return found[0]

    def _with_inputs(self, code: str, node: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Return the query with arguments in place of relations, and the value of each.

        All else of the text stays as it is. Raises `_Mistakes` for other relations.
        """
        exp, tree = self._glot.exp, self._parsed(code)
        readable = [*self._parents(node).values(), node]
        relations = {each["relation_name"]: each for each in readable if each.get("relation_name")}
        values = {
            _parts_of(exp.to_table(text, dialect=self._dialect)): each
            for text, each in relations.items()
        }
        taken = {clause.alias.lower() for clause in tree.find_all(exp.CTE)}
        arguments: dict[str, str] = {}
        mistakes: list[str] = []
        changes: list[tuple[int, int, str]] = []
        for table in tree.find_all(exp.Table):
            parent = values.get(_parts_of(table))
            if parent is None and table.args.get("db"):
                line, shown = table.parts[0].meta.get("line"), table.sql(self._dialect)
                mistakes.append(f"line {line}: it reads {shown}, which is no {_RELATION}")
            if parent is None:
                continue
            if parent is node:
                raise _Mistakes([_PARTLY])
            argument = arguments.get(_name_of(parent)) or _NO_WORD.sub("_", _name_of(parent))
            while _name_of(parent) not in arguments and argument.lower() in taken:
                argument += "_"  # Spark would read the query's own part
            taken.add(argument.lower())
            arguments[_name_of(parent)] = argument
            new = exp.to_identifier(argument, quoted=True).sql(dialect=self._dialect)
            if not table.alias and table.name != argument:
                # Columns may be qualified with the name that it had.
                new += f" AS {table.this.sql(dialect=self._dialect)}"
            changes.append((table.parts[0].meta["start"], table.this.meta["end"] + 1, new))
        if mistakes:
            raise _Mistakes(mistakes)
        changes += [
            (column.parts[0].meta["start"], column.args["table"].meta["start"], "")
            for column in tree.find_all(exp.Column)
            if column.args.get("db")  # of a struct it is a column's name
            and any(parts[1 - len(column.parts) :] == _parts_of(column)[:-1] for parts in values)
        ]
        for start, end, new in sorted(changes, reverse=True):
            code = f"{code[:start]}{new}{code[end:]}"
        return code, {argument: value for value, argument in arguments.items()}

    def _declarations(self, node: Mapping[str, Any]) -> str:
        """Return the comments that declare the contract of a model."""
        columns, key = [], []
        for column in node["columns"].values():
            kind = self._glot.exp.DataType.build(column["data_type"], dialect=self._dialect)
            rules = {each["type"] for each in column.get("constraints") or ()}
            required = " not null" if rules & {"not_null", "primary_key"} else ""
            columns.append(f"`{column['name']}` {kind.sql(dialect='spark')}{required}")
            key += [column["name"]] if "primary_key" in rules else []
        for rule in node.get("constraints") or ():
            key += rule["columns"] if rule["type"] == "primary_key" else []
        said = f"-- columns: {', '.join(columns)}\n"
        return said + (f"-- key: {', '.join(f'`{name}`' for name in key)}\n" if key else "")


def _name_of(node: Mapping[str, Any]) -> str:
    match node["resource_type"]:
        case "source":
            return f"{node['source_name']}/{node['name']}"
        case "test":
            return f"test/{node['name']}"
    version = node.get("version")
    return str(node["name"]) if version is None else f"{node['name']}.v{version}"


def _parts_of(table: Any) -> tuple[str, ...]:
    return tuple(part.name.lower() for part in table.parts)


def _unusable(node: Mapping[str, Any], code: str) -> str | None:
    """Return the reason if a node has no query, or one that was compiled for new rows alone.

    That is, if the compiled code has what the raw code has behind `is_incremental()` more often
    than the rest of the raw code has it.
    """
    if node.get("language", "sql") != "sql":
        return "a model in Python is not taken over: make it a function of your own"
    if not code:
        return "it is not compiled: run `dbt compile` in the project first"
    if node["unique_id"] in node["depends_on"]["nodes"] or "{{" in code:
        return _PARTLY
    raw = node.get("raw_code") or ""
    rest = _BLOCK.sub("", raw)
    for block in _BLOCK.finditer(raw):
        pieces = [re.escape(" ".join(each.split())) for each in _JINJA.split(block[1])]
        pattern = ".*?".join(each for each in pieces if each)
        seen, otherwise = (len(re.findall(pattern, " ".join(t.split()))) for t in (code, rest))
        if not pattern or seen > otherwise:
            return _PARTLY
    if "is_incremental()" in rest:
        return "what is_incremental() leaves out cannot be seen: write {% if is_incremental() %}"
    return None
