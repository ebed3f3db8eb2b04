"""SQL of DuckDB as SQL of Spark, where both were seen to give the same rows; all else is refused.

What `_TABLE` does not name is not translated: kinds of nodes, their parts, the types of these, and
forms of literals. A test runs each of its rows on both engines, over odd values.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, NamedTuple

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, OptimizeError, SchemaError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

_TABLE: Final = """
Select           | with_ order limit offset distinct expressions from_ joins where group having \
                   qualify
Union Except Intersect | with_ order limit offset this expression distinct
Subquery CTE Table | this alias
With Order Distinct Tuple | expressions
Group            | expressions all
Values           | expressions alias
TableAlias       | this columns
Join             | this on using kind& side
From Var DataTypeParam Star | this except_
Null             | | | null
Limit Offset     | expression#
Ordered          | this desc nulls_first
Identifier       | this quoted
Column           | this table
Literal          | this is_string
DataType         | this expressions nested
WindowSpec       | kind= start start_side end end_side
Where Having Qualify | this | boolean unknown
Alias            | this alias | | this
Paren            | this | | this
Filter           | this expression | | this
Window           | this partition_by order spec over | | this
FirstValue LastValue | this | | this
Boolean          | this | | boolean
And Or           | this expression | boolean unknown | boolean
Not              | this | boolean unknown | boolean
Is               | this expression | | boolean
EQ NEQ LT LTE GT GTE NullSafeEQ NullSafeNEQ | this expression | compared | boolean
Between          | this low high | compared | boolean
In               | this expressions query | compared | boolean
Exists           | this | | boolean
Like             | this expression% negate | text | boolean
ILike            | this expression^ negate | text | boolean
Case             | this ifs default
If               | this true false
Coalesce         | this expressions | same | same
Greatest Least   | this expressions ignore_nulls | same | same
Nullif           | this expression | compared | this
Add Sub Mul      | this expression | number
Div              | this expression typed safe | number | double
IntDiv Mod       | this expression | integer
Neg Abs          | this | number | this
Round            | this decimals~ | number
DPipe            | this expression safe | text integer | text
Concat           | expressions safe coalesce | text | text
Lower Upper MD5  | this | text | text
Length           | this | text | bigint
Trim             | this position | text | text
Substring        | this start# length# | text | text
Left Right       | this expression# | text | text
Replace          | this expression' replacement" | text | text
SplitPart        | this delimiter' part_index# | text | text
Pad              | this expression# fill_pattern' is_left | text | text
StartsWith Contains | this expression' | text | boolean
Year Quarter Month Day | this | date timestamp | bigint
LastDay          | this | date timestamp | date
Extract          | this@ expression | date timestamp | bigint
TimestampTrunc   | this unit@ | date timestamp | timestamp_ntz
DateDiff         | this expression unit! date_part_boundary | date | bigint
Cast             | this to
Count            | this big_int | | bigint
CountIf          | this | boolean | bigint
LogicalAnd LogicalOr | this | boolean | boolean
Sum Avg          | this | number
Min Max          | this | same | this
RowNumber Rank DenseRank | | | bigint
Lag Lead         | this offset# default | same | same
"""
"""Kinds of nodes | their parts, with the form of those that are literals | families of the types of
the others | type of the result, or `this`, or `same`. What has no type there has a method."""
_FORMS: Final = {
    "#": (re.compile(r"[1-9]\d*"), "a number from 1"),
    "~": (re.compile(r"\d+"), "a number of digits"),
    "'": (re.compile(r"(?s).+"), "a text that is written there"),
    '"': (re.compile(r"(?s).*"), "a text that is written there"),
    "%": (re.compile(r"[^\\]*"), "a pattern that is written there, without \\"),
    "^": (
        re.compile(r"[\x20-\x5b\x5d-\x7f]*"),
        "a pattern of ASCII that is written there, without \\",
    ),
    "@": (re.compile(r"(?i)year|quarter|month|week|day"), "year, quarter, month, week or day"),
    "!": (re.compile(r"(?i)day"), "day"),
    "&": (re.compile(r"INNER|CROSS|OUTER|SEMI|ANTI"), "equalities"),
    "=": (re.compile(r"(?i)rows"), "ROWS"),
}
"""Marks of parts in the table: form of the literal, and that in words."""
_BLANKS: Final = " \u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000"
_WRITTEN: Final[Mapping[type[exp.Expr], tuple[str, str]]] = {
    exp.Lower: ("this", "TRANSLATE(?, '\u0130\u03a3', 'i\u03c3')"),  # a last sigma is another
    exp.Upper: ("this", "TRANSLATE(?, '\u00df', '\u1e9e')"),  # of sharp s Spark makes SS
    exp.ILike: ("this", "TRANSLATE(?, '\u0130', 'i')"),
    exp.TimestampTrunc: ("", "CAST(? AS TIMESTAMP_NTZ)"),
}
"""Text for Spark in place of a part of a node, or of the node; ? stands for that."""
_DIGITS: Final = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20, "INT128": 20}
"""Integers by width, with the digits that each has as a decimal in Spark."""
_FAMILIES: Final = {
    **dict.fromkeys(_DIGITS, "integer"),
    **dict.fromkeys(("TEXT", "VARCHAR"), "text"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPNTZ"), "timestamp"),
    **{n: n.lower() for n in ("DECIMAL", "DOUBLE", "BOOLEAN", "DATE", "NULL", "UNKNOWN")},
}
_CASTS: Final = {
    "null": "boolean integer decimal double text date timestamp",
    "boolean": "boolean integer text",
    "integer": "integer decimal double text boolean",
    "decimal": "integer decimal double text",
    "double": "integer decimal double",
    "text": "text integer decimal double boolean date",
    "date": "date timestamp text",
    "timestamp": "timestamp date text",
}
"""Families of types that each may be cast to."""
_MAX_DIGITS: Final = 38
_MAX_SCALE: Final = 15
"""Digits behind the point of a decimal that a double is cast to."""
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?")
_NUMBER: Final = "node"
"""Key of the number of a node in its `meta`, by which it is known in a copy of the tree."""


class _Rule(NamedTuple):
    literals: dict[str, str]
    parts: list[str]
    families: str
    result: str


def _rules() -> dict[type[exp.Expr], _Rule]:
    found = {}
    for row in _TABLE.strip().split("\n"):
        kinds, parts, families, result = [*map(str.strip, row.split("|")), "", ""][:4]
        literals = {each[:-1]: each[-1] for each in parts.split() if each[-1] in _FORMS}
        others = [each for each in parts.split() if each[-1] not in _FORMS]
        families = families.replace("number", "integer decimal double")
        for kind in kinds.split():
            found[getattr(exp, kind)] = _Rule(literals, others, families, result)
    return found


_RULES: Final = _rules()


def _type(text: str) -> exp.DataType:
    return exp.DataType.build(text, dialect="spark")


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar[dict[Any, Any]] = {  # a SELECT stays as it is, with its QUALIFY
        kind: how for kind, how in SparkGenerator.TRANSFORMS.items() if kind is not exp.Select
    }


class _Spark(Spark):
    Generator = _Generator


class Translation:
    """The translation of one query of DuckDB."""

    def __init__(
        self, tree: exp.Query, relations: Mapping[str, Mapping[str, exp.DataType]], *, named: bool
    ) -> None:
        """Translate it, and change the tree.

        `relations`: types of the columns of each, with a star if it has others, by its name.
        `named`: whether the names of the result's columns count.
        """
        self._tree = tree
        self._nodes = dict(enumerate(tree.walk()))
        self._found: dict[tuple[int, str], None] = {}
        self._changes: dict[tuple[int, str], str] = {}
        self._sides: dict[int, list[exp.DataType]] = {}
        """Types of the columns of set operations, by their ids."""
        for number, node in self._nodes.items():
            node.meta[_NUMBER] = number
        names = {name.lower() for columns in relations.values() for name in columns}
        for node in self._nodes.values():
            self._check(node)
            if isinstance(node, exp.Select):
                self._check_names(node, names, named=named)
        self.columns = self._typed(relations)
        """Types of the columns of the result, and a star if it has others."""
        self.mistakes = [
            f"{_place(self._nodes.get(number))}{what}" for number, what in sorted(self._found)
        ]
        """Parts that are not translated, each with its line."""

    def text(self) -> str:
        for (number, part), how in self._changes.items():
            old = self._nodes[number].args[part] if part else self._nodes[number]
            new: Any = exp.maybe_parse(how, dialect=_Spark)
            old.replace(new)
            new.find(exp.Placeholder).replace(old)
        return _Spark().generate(self._tree, pretty=True, unsupported_level=ErrorLevel.RAISE)

    def _refuse(self, node: exp.Expr, what: str) -> exp.DataType:
        self._found[node.meta.get(_NUMBER, 0), what] = None
        return _type("unknown")

    def _change(self, node: exp.Expr, part: str, how: str) -> None:
        if (number := node.meta.get(_NUMBER)) is not None:
            self._changes[number, part] = how

    # ------------------------------------------------------------------------- nodes by themselves

    def _check(self, node: exp.Expr) -> None:
        rule = _RULES.get(type(node))
        if rule is None:
            self._refuse(node, f"{_words(node)} is not translated")
            return
        for name, part in node.args.items():
            form = _FORMS.get(rule.literals.get(name, ""))
            if part in (None, False, []) or name in rule.parts:
                continue
            if form is None:
                self._refuse(node, f"{name.strip('_').upper()} of {_words(node)} is not translated")
                continue
            text = part.name if isinstance(part, exp.Literal | exp.Var) else part
            if not isinstance(text, str) or not form[0].fullmatch(text):
                self._refuse(node, f"{_words(node)} is translated with {form[1]} alone")
        if (
            (isinstance(node, exp.Ordered) and isinstance(node.this, exp.Var))
            or (isinstance(node, exp.Tuple) and not isinstance(node.parent, exp.Values))
            or (isinstance(node, exp.Substring) and node.args.get("start") is None)
            or (isinstance(node, exp.In) and node.args.get("query") and not _is_filter(node))
        ):
            self._refuse(node, f"{_words(node)} of this form is not translated")

    def _check_names(self, select: exp.Select, names: set[str], *, named: bool) -> None:
        """Refuse names that each engine chooses or understands in its own way."""
        around = select.find_ancestor(exp.CTE, exp.From, exp.Join, exp.Select)
        if named and not isinstance(around, exp.Select) and select.arg_key != "expression":
            for each in select.selects:
                if not isinstance(each, (exp.Alias, exp.Column, exp.Star)):
                    self._refuse(each, "a column of the result without a name: write AS and one")
        aliases = {
            each.alias.lower()
            for each in select.selects
            if isinstance(each, exp.Alias) and each.this.name.lower() != each.alias.lower()
            if {each.alias.lower()} & (names | {c.name.lower() for c in each.find_all(exp.Column)})
        }
        order = select.args.get("order")
        parts = [select.args.get("having"), select.args.get("qualify")]
        parts += [each.this for each in order.expressions] if order else []
        for part in parts:
            for column in part.find_all(exp.Column) if part and part.key != "column" else ():
                if not column.table and column.name.lower() in aliases:
                    self._refuse(
                        column, f"{column.name!r} is a column and a result: name the result anew"
                    )

    # -------------------------------------------------------------------------------------- types

    def _typed(self, relations: Mapping[str, Mapping[str, Any]]) -> dict[str, exp.DataType]:
        """Judge each node by the types of its parts; return those of the result's columns."""
        rules = {kind: {"annotator": self._annotate} for kind in _RULES if kind is not exp.Column}
        schema: Any = {name: dict(columns) for name, columns in relations.items() if columns}
        known = {*schema, *(each.alias.lower() for each in self._tree.find_all(exp.CTE))}
        try:
            whole = qualify(
                self._tree.copy(),
                dialect="duckdb",
                schema=schema or None,
                validate_qualify_columns=False,
                # A name may be a column of a relation that is not known here, and comes first.
                expand_alias_refs=known.issuperset(
                    each.name if each.name in schema else each.name.lower()
                    for each in self._tree.find_all(exp.Table)
                ),
            )
            annotate_types(whole, schema or None, rules, dialect="duckdb")
        except (OptimizeError, SchemaError) as error:
            self._refuse(self._tree, f"its columns cannot be told: {str(error).splitlines()[0]}")
            return {}
        is_both = isinstance(whole, exp.SetOperation)
        kinds = self._sides[id(whole)] if is_both else [each.type for each in whole.selects]
        pairs = zip(whole.selects, kinds, strict=False)
        return {each.alias_or_name: kind or _type("unknown") for each, kind in pairs}

    def _annotate(self, annotator: Any, node: exp.Expr) -> None:
        rule = _RULES[type(node)]
        parts = [each for name in rule.parts for each in _listed(node.args.get(name))]
        parts = [each.selects[0] if isinstance(each, exp.Query) else each for each in parts]
        kind, own = None, getattr(self, f"_{type(node).__name__.lower()}", None)
        if rule.families in ("compared", "same"):
            kind = self._same(node, parts, literals=rule.families == "compared")
        elif rule.families and sum(not self._has(node, rule.families, each) for each in parts):
            own = None
        if own is not None:
            kind = own(node)
        if rule.result == "this":
            kind = node.this.type
        elif rule.result not in ("", "same"):
            kind = _type(rule.result)
        if isinstance(node, exp.SetOperation):
            names = [each.alias_or_name for each in node.selects]
            self._sides[id(node)] = self._both(node)
            kinds = zip(names, self._sides[id(node)], strict=False)
            annotator._setop_column_types[id(node)] = [*kinds]  # noqa: SLF001
        if type(node) in _WRITTEN:
            self._change(node, *_WRITTEN[type(node)])
        annotator._set_type(node, kind or _type("unknown"))  # noqa: SLF001 - as its own rules do

    def _has(self, node: exp.Expr, families: str, part: exp.Expr) -> bool:
        """Whether a part has a type of these families; if not, the node is refused."""
        if _family(part.type) in (*families.split(), "null"):
            return True
        self._refuse(node, f"{_words(node)} of {_said(part.type)} is not translated")
        return False

    def _same(
        self, node: exp.Expr, parts: Iterable[exp.Expr], *, literals: bool = False
    ) -> exp.DataType:
        """Return the type that all parts become; refuse the node if each engine chooses its own.

        `literals`: whether texts that are written there may be read as what they are beside.
        """
        parts = [each for each in parts if _family(each.type) != "null"]
        texts = [each.name for each in parts if each.is_string]
        others = [each for each in parts if not each.is_string]
        families = {_family(each.type) for each in others}
        is_moment = families & {"date", "timestamp"} and all(map(_MOMENT.fullmatch, texts))
        if literals and families <= {"unknown", "integer", "double"} and not texts:
            return _type("unknown")  # text is read as the number, or fails
        is_word = families == {"unknown"} and not any(re.match(r"\W*\d", text) for text in texts)
        return self._same_type(
            node, [e.type for e in (others if literals and (is_moment or is_word) else parts)]
        )

    def _same_type(self, node: exp.Expr, given: Iterable[exp.DataType | None]) -> exp.DataType:
        kinds = [kind or _type("unknown") for kind in given if _family(kind) != "null"]
        families = {*map(_family, kinds)}
        if not kinds:
            return _type("null")
        if families <= {"integer", "decimal", "double"}:
            if families == {"integer"}:
                return max(kinds, key=lambda kind: list(_DIGITS).index(kind.this.name))
            sizes = [*map(_size, kinds)]
            scale = max(scale for _, scale in sizes)
            whole = max(digits - scale for digits, scale in sizes)
            return _type("double") if "double" in families else self._decimal(node, whole, scale)
        if families == {"date", "timestamp"}:
            return _type("timestamp_ntz")
        if len(families) == 1 and "other" not in families:
            return kinds[0]
        said = " and ".join(sorted({*map(_said, kinds)}))
        return self._refuse(node, f"{_words(node)} of {said} is not translated")

    def _decimal(self, node: exp.Expr, whole: int, scale: int) -> exp.DataType:
        if whole + scale > _MAX_DIGITS:
            return self._refuse(node, f"{_words(node)} of decimals needs more than 38 digits")
        return _type(f"decimal({whole + scale}, {scale})")

    def _literal(self, node: exp.Literal) -> exp.DataType:
        if node.is_string:
            return _type("string")
        if found := re.fullmatch(r"(\d*)\.(\d*)", node.name):
            return self._decimal(node, len(found[1].lstrip("0")), len(found[2]))
        if not node.name.isdecimal():
            return _type("double")
        return _type("int" if int(node.name) < 2**31 else "bigint")

    def _is(self, node: exp.Is) -> None:
        if not isinstance(node.expression, exp.Null):
            self._has(node, "boolean", node.this)

    def _subquery(self, node: exp.Subquery) -> exp.DataType | None:
        return node.selects[0].type if len(node.selects) == 1 else None

    def _distinct(self, node: exp.Distinct) -> exp.DataType | None:
        return node.expressions[0].type if len(node.expressions) == 1 else None

    def _both(self, node: exp.SetOperation) -> list[exp.DataType]:
        """Return the types of the columns of both sides, which are put together by place."""
        sides = [
            self._sides[id(side)]
            if isinstance(side, exp.SetOperation)
            else [e.type for e in side.selects]
            for side in (node.this.unnest(), node.expression.unnest())
        ]
        pairs = [*zip(*sides, strict=False)]
        if "unknown" in {_family(kind) for pair in pairs for kind in pair}:
            self._refuse(node, f"{_words(node)} of an unknown type is not translated")
        return [self._same_type(node, pair) for pair in pairs]

    def _values(self, node: exp.Values) -> None:
        for column in zip(*(row.expressions for row in node.expressions), strict=False):
            kind = self._same(node, column)
            for each in column:
                each.type = kind

    def _case(self, node: exp.Case) -> exp.DataType:
        if node.this is not None:
            self._same(node, [node.this, *(each.this for each in node.args["ifs"])], literals=True)
        return self._same(
            node,
            _listed([*(each.args["true"] for each in node.args["ifs"]), node.args.get("default")]),
        )

    def _if(self, node: exp.If) -> exp.DataType:
        if not isinstance(node.parent, exp.Case) or node.parent.this is None:
            self._has(node, "boolean unknown", node.this)
        return self._same(node, _listed([node.args["true"], node.args.get("false")]))

    def _add(self, node: exp.Add | exp.Sub) -> exp.DataType:
        kind = self._same(node, [node.this, node.expression])
        digits, scale = _size(kind)
        return self._decimal(node, digits - scale + 1, scale) if _is_decimal(kind) else kind

    _sub = _add

    def _mod(self, node: exp.Mod | exp.IntDiv) -> exp.DataType:
        return self._same(node, [node.this, node.expression])

    _intdiv = _mod

    def _mul(self, node: exp.Mul) -> exp.DataType:
        kind = self._same(node, [node.this, node.expression])
        if not _is_decimal(kind):
            return kind
        (one, behind), (two, point) = _size(node.this.type), _size(node.expression.type)
        return self._decimal(node, one - behind + two - point + 1, behind + point)

    def _div(self, node: exp.Div) -> None:
        for part in ("this", "expression"):
            if _is_decimal(node.args[part].type):
                self._change(node, part, "CAST(? AS DOUBLE)")

    def _avg(self, node: exp.Avg) -> exp.DataType:
        if _is_decimal(node.this.type):
            if isinstance(node.this, exp.Distinct):
                return self._refuse(node, "AVG of DISTINCT decimals is not translated")
            self._change(node, "this", "CAST(? AS DOUBLE)")
        return _type("double")

    def _sum(self, node: exp.Sum) -> exp.DataType:
        kind = node.this.type
        digits, scale = _size(kind)
        if _is_decimal(kind):
            return self._decimal(node, min(digits + 10, _MAX_DIGITS) - scale, scale)
        return exp.DataType.build("int128" if _family(kind) == "integer" else "double")

    def _count(self, node: exp.Count) -> None:
        if isinstance(node.this, exp.Distinct) and len(node.this.expressions) > 1:
            self._refuse(node, "COUNT of DISTINCT columns is translated for one alone")

    def _round(self, node: exp.Round) -> exp.DataType:
        kind, to = node.this.type, int(node.text("decimals") or 0)
        if "decimals" in node.args and _family(kind) == "double":
            return self._refuse(
                node, "ROUND of a double to digits is not translated: cast it to a decimal"
            )
        digits, scale = _size(kind)
        is_less = _is_decimal(kind) and to < scale
        return self._decimal(node, digits - scale + 1, to) if is_less else kind

    def _trim(self, node: exp.Trim) -> None:
        side = node.args.get("position") or "BOTH"  # Spark's takes spaces alone
        self._change(node, "", f"TRIM({side} '{_BLANKS}' FROM ?)")

    def _cast(self, node: exp.Cast) -> exp.DataType:
        old, to = node.this.type, node.to
        source, new = _family(old), _family(to)
        if new == "text" or (new == "decimal" and not to.expressions):  # a length does not count
            to = _type("string" if new == "text" else "decimal(18, 3)")
            self._nodes[node.meta[_NUMBER]].set("to", to.copy())
        if node.this.is_string and new in ("date", "timestamp") and _MOMENT.fullmatch(node.name):
            return to
        scale = _size(to)[1]
        if (
            new not in _CASTS.get(source, "").split()
            or to.this == exp.DType.INT128
            or (source == "double" and scale > _MAX_SCALE)
        ):
            return self._refuse(node, f"CAST of {_said(old)} to {_said(to)} is not translated")
        if new == "integer" and source in ("decimal", "double"):
            self._change(node, "this", "ROUND(?)" if source == "decimal" else "RINT(?)")
        if (source, new) == ("double", "decimal"):
            # DuckDB multiplies and rounds; Spark would round the text of the number.
            point = f" * 0.{'1':0>{scale}}" if scale else ""
            self._change(node, "this", f"CAST(ROUND(? * 1e{scale}) AS BIGINT){point}")
        return to


def _is_filter(node: exp.Expr) -> bool:
    """Whether rows are left out by this alone; elsewhere a null IN a query is false to Spark."""
    around = node.parent
    if isinstance(around, exp.Not):
        around = around.parent
    while isinstance(around, exp.And | exp.Paren):
        around = around.parent
    return isinstance(around, exp.Where)


def _place(node: exp.Expr | None) -> str:
    """Return the line of a node, as far as the library has noted it there or around it."""
    while node is not None:
        if lines := [each.meta["line"] for each in node.walk() if "line" in each.meta]:
            return f"line {min(lines)}: "
        node = node.parent
    return ""


def _words(node: exp.Expr) -> str:
    """Return a node's kind as a person calls it."""
    if isinstance(node, exp.Anonymous):
        return f"the function {node.name.lower()}()"
    if isinstance(node, exp.Func) and not isinstance(node, (exp.Binary, exp.Case)):
        return node.sql_name()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


def _listed(part: Any) -> list[exp.Expr]:
    parts = part if isinstance(part, list) else [part]
    return [each for each in parts if isinstance(each, exp.Expr)]


def _family(kind: exp.DataType | None) -> str:
    name = kind.this.name if kind is not None and isinstance(kind.this, exp.DType) else ""
    return _FAMILIES.get(name, "other" if name else "unknown")


def _is_decimal(kind: exp.DataType | None) -> bool:
    return _family(kind) == "decimal"


def _size(kind: exp.DataType | None) -> tuple[int, int]:
    """Return the digits of a number, and those behind the point."""
    if kind is None or not _is_decimal(kind):
        return _DIGITS.get(kind.this.name if kind else "", 0), 0
    sizes = [int(each.name) for each in kind.expressions]
    return sizes[0], sizes[1] if len(sizes) > 1 else 0


def _said(kind: exp.DataType | None) -> str:
    family = _family(kind)
    if kind is not None and family in ("other", "decimal"):
        return kind.sql(dialect="duckdb").lower()
    return "an unknown type" if family == "unknown" else family
