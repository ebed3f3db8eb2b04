"""dbt projects as graphs: models and tests are queries, seeds are tables.

What is read is `target/manifest.json`, as `dbt compile` writes it; dbt itself is not needed. The
SQL of the project's own database becomes that of Spark, by sqlglot.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rebaser_client.csv_files import read_csv_table
from rebaser_client.display import package
from rebaser_client.draft import Draft, sql
from rebaser_client.errors import InvalidDraft
from rebaser_core.errors import many

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
_SHOWN: Final = 20
"""Mistakes that a message lists."""


def is_manifest(data: Any) -> bool:
    """Whether the content of a JSON file is a manifest of dbt."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    return isinstance(metadata, dict) and "dbt_schema_version" in metadata


def read_manifest(data: Mapping[str, Any], path: Path) -> Draft:
    """Return the draft of the project whose manifest lies at `path`. Blocks.

    A model is a table by its name, and so is a seed, read from its CSV file. A test is the number
    of rows that fail it, as `test/<name>`. A source is read from the value `<source>/<table>`,
    which is in the change set already. An enforced contract is declared with the query.

    Raises:
        InvalidDraft: parts of the project cannot be values; the message names each.
        MissingPackage: sqlglot or pyarrow is not installed.
        OSError: the file of a seed cannot be read.
    """
    return _Project(data, path).draft()


class _Project:
    def __init__(self, data: Mapping[str, Any], path: Path) -> None:
        self._glot = package("sqlglot", extra="server")
        self._nodes: Mapping[str, Any] = data.get("nodes") or {}
        self._sources: Mapping[str, Any] = data.get("sources") or {}
        self._root = path.absolute().parent.parent
        self._draft = Draft()
        try:
            self._dialect = self._glot.Dialect.get_or_raise(data["metadata"].get("adapter_type"))
        except ValueError as error:
            raise InvalidDraft(f"SQL of this project's database cannot be read: {error}") from error

    def draft(self) -> Draft:
        mistakes = [
            f"{node['resource_type']} {_name_of(node)}: {mistake}"
            for node in self._nodes.values()
            if (mistake := self._define(node))
        ]
        if mistakes:
            listed = "\n".join(f"  {mistake}" for mistake in mistakes[:_SHOWN])
            rest = "\n  …" if len(mistakes) > _SHOWN else ""
            what = many(len(mistakes), "part")
            raise InvalidDraft(f"{what} of the dbt project cannot be values:\n{listed}{rest}")
        if not self._draft.definitions:
            raise InvalidDraft("the dbt project has no model, seed or test")
        return self._draft

    def _define(self, node: Mapping[str, Any]) -> str | None:
        """Define the node's value, if it has one; return the reason if it cannot."""
        match node["resource_type"]:
            case "seed":
                return self._define_seed(node)
            case "snapshot":
                return "snapshots are not taken over: every commit of a change set stays readable"
            case "model" | "test" if node["config"].get("materialized") != "ephemeral":
                return self._define_query(node)  # dbt has put ephemeral ones into their readers
        return None

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
        """Return the type of Arrow for one in SQL."""
        kind = self._glot.exp.DataType.build(text, dialect=self._dialect)
        name = kind.this.name
        if name == "DECIMAL":
            return pa.decimal128(*[int(each.name) for each in kind.expressions] or [18, 3])
        if name.startswith("TIMESTAMP"):
            return pa.timestamp("us", "UTC" if name in ("TIMESTAMPTZ", "TIMESTAMPLTZ") else None)
        found = next((arrow for end, arrow in _TYPES.items() if name.endswith(end)), None)
        if found is None:
            raise ValueError(f"a column of the type {text!r} is not taken over")
        return getattr(pa, found)()

    def _define_query(self, node: Mapping[str, Any]) -> str | None:
        if node.get("language", "sql") != "sql":
            return "a model in Python is not taken over: make it a function of your own"
        if not node.get("compiled_code"):
            return "it is not compiled: run `dbt compile` in the project first"
        if node["unique_id"] in node["depends_on"]["nodes"] or "{{" in node["compiled_code"]:
            return "it reads itself: compile it with `--full-refresh`, as a whole"
        exp = self._glot.exp
        try:
            tree = self._glot.parse_one(node["compiled_code"], dialect=self._dialect)
            inputs = self._name_inputs(tree, node)
            text = tree.sql(dialect="spark", pretty=True)
        except (self._glot.errors.SqlglotError, RecursionError) as error:
            return f"its SQL cannot be read: {str(error).splitlines()[0]:.200}"
        if unknown := [each for each in tree.find_all(exp.Table) if each.args.get("db")]:
            return f"it reads {unknown[0].sql()}, which is no model, seed or source of the project"
        if node["resource_type"] == "test":
            count = node["config"].get("fail_calc") or "count(*)"
            text = f"-- returns: value\nSELECT {count} FROM (\n{text}\n) AS failures"
        elif node["config"].get("contract", {}).get("enforced"):
            text = self._declarations(node) + text
        name = _name_of(node)
        self._draft.value(name, sql(text, name=name), **inputs)
        return None

    def _name_inputs(self, tree: Any, node: Mapping[str, Any]) -> dict[str, str]:
        """Put arguments in place of the relations in a query; return each one's value."""
        exp = self._glot.exp
        values = {}
        for name in node["depends_on"]["nodes"]:
            parent = self._nodes.get(name) or self._sources.get(name)
            if parent is not None and parent.get("relation_name"):
                relation = exp.to_table(parent["relation_name"], dialect=self._dialect)
                values[_parts_of(relation)] = _name_of(parent)
        taken = {clause.alias.lower() for clause in tree.find_all(exp.CTE)}
        arguments: dict[str, str] = {}
        for table in tree.find_all(exp.Table):
            value = values.get(_parts_of(table))
            if value is None:
                continue
            if value not in arguments:
                argument = _NO_WORD.sub("_", value)
                while argument.lower() in taken:  # Spark would read the query's own part
                    argument += "_"
                taken.add(argument.lower())
                arguments[value] = argument
            if not table.alias and table.name != arguments[value]:
                # Columns may be qualified with the name that it had.
                table.set("alias", exp.TableAlias(this=table.this.copy()))
            table.set("this", exp.to_identifier(arguments[value]))
            table.set("db", None)
            table.set("catalog", None)
        for column in tree.find_all(exp.Column):
            column.set("db", None)
            column.set("catalog", None)
        return {argument: value for value, argument in arguments.items()}

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
    """Return the name of a node's value."""
    match node["resource_type"]:
        case "source":
            return f"{node['source_name']}/{node['name']}"
        case "test":
            return f"test/{node['name']}"
    version = node.get("version")
    return str(node["name"]) if version is None else f"{node['name']}.v{version}"


def _parts_of(table: Any) -> tuple[str, ...]:
    return tuple(part.name.lower() for part in table.parts)
