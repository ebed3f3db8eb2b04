"""Judges the SQL of clients: what Spark may be given, and the text that it is given.

The text of a client never reaches Spark. It is read as one query, the tree is compared with lists
of what is allowed, and a text is printed anew from the tree, read and judged once more. All that is
not named here is refused: kinds of nodes and their parts (`_PARTS`), functions by Spark's names
(`FUNCTIONS`), and relations that are neither an argument nor a part of a `WITH` clause. So a query
reads no file, runs no program and sees no other view.

What grows without rows is bounded: nesting, relations, counts such as that of `repeat`, joins
without an equality. What a query costs by its rows is for deadlines.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import prod
from types import NoneType
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

from rebaser_server.values.canonical_json import dumps

MAX_BYTES: Final = 65_536
"""Maximum number of bytes of a query."""
_MAX_BRACKETS: Final = 40
"""Maximum number of brackets that are open at a time: each takes some twenty calls to read."""
_MAX_STEPS: Final = 20
"""Maximum number of steps of the parser for a token; fewer than two are usual."""
_MAX_DEPTH: Final = 150
"""Maximum depth of the tree, a chain of one operator counted once."""
_MAX_CHAIN: Final = 1_000
"""Maximum depth with chains, which Spark goes through by recursion."""
_MAX_RELATIONS: Final = 500
"""Maximum number of relations with those in `WITH` counted as often as they are used, as Spark
plans them."""
_MAX_FACTOR: Final = 100_000_000
"""Maximum product of all the counts and small relations that a query multiplies its rows by."""
_SMALL: Final = 1_000
"""Rows that an argument declared small is reckoned with."""
_MAX_GROUPINGS: Final = 256
"""Maximum number of grouping sets, each of which copies all rows."""


class SqlRefused(Exception):
    """A query that is not run. The message is meant for users."""


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    text: str
    """Text for Spark, printed from the tree."""
    tables: frozenset[str]
    """Names of the arguments that it reads as relations."""
    parameters: frozenset[str]
    """Names of the arguments that it takes as named parameters."""


def judge(
    code: str, arguments: Collection[str] | None = None, *, small: Collection[str] = ()
) -> JudgedQuery:
    """Return the query that may be run in place of `code`.

    `arguments`: names of the arguments of the call; None judges what is known without them.
    `small`: arguments that may be joined without a condition.

    Raises:
        SqlRefused: it may not be run.
    """
    names = None if arguments is None else frozenset(arguments)
    return _judge(code, names, frozenset(name.lower() for name in small))


@lru_cache(256)
def _judge(code: str, arguments: frozenset[str] | None, small: frozenset[str]) -> JudgedQuery:
    try:
        size = len(code) if len(code) > MAX_BYTES else len(code.encode())
    except UnicodeEncodeError as error:
        raise SqlRefused(f"the query is no text of Unicode: {error}") from None
    if size > MAX_BYTES:
        raise SqlRefused(f"a query has at most {MAX_BYTES:,} bytes: make several values of it")
    try:
        first = read(code)
        _Judge(arguments, small).judge(first)
        text = _print(first)
        again = read(text)
        query = _Judge(arguments, small).judge(again)
        if _print(again) != text:
            raise SqlRefused("the query is ambiguous: write parentheses, and plain names")
    except RecursionError:
        raise SqlRefused("the query is nested too deeply: make several values of it") from None
    except SqlglotError as error:
        raise SqlRefused(_parse_error(error)) from None
    except SqlRefused:
        raise
    except Exception:  # the library reads what it was not written for
        raise SqlRefused("the query cannot be read as SQL: write it in another way") from None
    if "${" in text:  # in a name; in strings it is escaped
        raise SqlRefused("'${' cannot be in a name: Spark would put a variable there")
    return JudgedQuery(text, *query)


def _parse_error(error: SqlglotError) -> str:
    found = getattr(error, "errors", None)
    if not found:
        return f"the query cannot be read as SQL: {_plain(str(error))}"
    return (
        f"line {found[0]['line']}, column {found[0]['col']}: the query cannot be read as Spark's "
        f"SQL: {_plain(found[0]['description'])} near {_excerpt(found[0]['highlight'])}"
    )


def _plain(text: str) -> str:
    return _excerpt(re.sub(r"\x1b\[\d+m|<class '[\w.]*\.(\w+)'>", r"\1", text).split("\n")[0])


def _excerpt(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[:limit]}…"


# ------------------------------------------------------------------ Spark's SQL, read and printed


class _Parser(SparkParser):
    """Spark's grammar without functions, but for those with a syntax of their own.

    So all others stay as they are written, and are not replaced by what the library holds for
    equal.
    """

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name]
        for name in ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "POSITION", "OVERLAY")
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "ANY")
    }

    COLON_PLACEHOLDER_TOKENS = SparkParser.COLON_PLACEHOLDER_TOKENS | {TokenType.IDENTIFIER}
    """Names in backquotes, too: any argument may be a parameter."""

    _steps = 0

    def _advance(self, times: int = 1) -> None:
        """Go on, or back to try another rule: nested attempts can double with each bracket."""
        self._steps += 1
        if self._steps > _MAX_STEPS * (self._tokens_size + _MAX_BRACKETS):
            raise SqlRefused("the query takes too long to read: nest less")
        super()._advance(times)

    def _parse_pipe_syntax_limit(self, query: exp.Select) -> exp.Select:
        """Take the first rows of the query before; the library fails for one without a limit."""
        rows = exp.select("*").from_(query.subquery(copy=False), copy=False)
        rows.set("limit", self._parse_limit())
        rows.set("offset", self._parse_offset())
        return exp.select("*").from_(rows.subquery(copy=False), copy=False)

    def _warn_unsupported(self) -> None:
        """Raise where the library would log a warning and take any text for a command."""
        self.raise_error("it is no query")


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **{kind: how for kind, how in SparkGenerator.TRANSFORMS.items() if kind is not exp.Select},
        exp.NullSafeEQ: lambda self, node: self.binary(node, "<=>"),
    }
    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[Any]] = set()  # Spark has them, and their scopes

    def literal_sql(self, expression: exp.Literal) -> str:
        return _quoted(expression.name) if expression.is_string else expression.name

    def rawstring_sql(self, expression: exp.RawString) -> str:
        return _quoted(expression.name)

    def placeholder_sql(self, expression: exp.Placeholder) -> str:
        name = expression.name
        kind = _Dialect.Tokenizer.KEYWORDS.get(name.upper(), TokenType.VAR)
        is_plain = (
            re.fullmatch(r"(?a:[A-Za-z_]\w*)", name) and kind in _Parser.COLON_PLACEHOLDER_TOKENS
        )
        return f":{name}" if is_plain else f":`{name}`"


_ESCAPED: Final = re.compile(r"[\\']|[\x00-\x1f\x7f]|\$(?=\{)")


def _quoted(text: str) -> str:
    """Return a string for Spark. `${` would be replaced by a variable of the environment."""
    return f"'{_ESCAPED.sub(_escape, text)}'"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\{character}" if character in "\\'" else f"\\u{ord(character):04x}"


class _Dialect(Spark):
    STRICT_JSON_PATH_SYNTAX = False  # else it logs what it cannot read behind an arrow

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']  # a quote written twice, as Spark 4

    Parser = _Parser
    Generator = _Generator


def read(code: str) -> exp.Expr:
    """Return the tree of a query. Raises `SqlRefused`, or what the library raises."""
    dialect = _Dialect()
    tokens = dialect.tokenize(code)
    depth = deepest = 0
    for token in tokens:
        if token.token_type == TokenType.HEX_STRING and code[token.start] == "0":
            raise SqlRefused(f"line {token.line}, column {token.col}: Spark has no numbers in hex")
        depth += (token.text in {"(", "["}) - (token.text in {")", "]"})
        deepest = max(deepest, depth)
    if deepest > _MAX_BRACKETS:
        raise SqlRefused(f"more than {_MAX_BRACKETS} brackets are open at a time: nest less")
    parser = dialect.parser(error_level=ErrorLevel.IMMEDIATE)
    statements = [
        each
        for each in parser.parse(tokens, code)
        if not isinstance(each, (exp.Semicolon, NoneType))
    ]
    if len(statements) != 1:
        raise SqlRefused("a function's code is exactly one query")
    return statements[0]


def _print(tree: exp.Expr) -> str:
    return _Dialect().generate(
        tree, identify=True, comments=False, unsupported_level=ErrorLevel.RAISE
    )


# ------------------------------------------------------------------------------- what is allowed


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BINARY: Final = "this expression"
_QUERY: Final = "with_ order limit offset"
_PARTS: Final[Mapping[type[exp.Expr], str]] = {
    # queries
    exp.Select: f"{_QUERY} distinct expressions from_ joins laterals where group having "
    "windows qualify",
    exp.Union: f"{_QUERY} {_BINARY} distinct",
    exp.Except: f"{_QUERY} {_BINARY} distinct",
    exp.Intersect: f"{_QUERY} {_BINARY} distinct",
    exp.Subquery: f"{_QUERY} this alias pivots",
    exp.With: "expressions",
    exp.CTE: "this alias",
    exp.Values: "expressions alias",
    exp.From: "this",
    exp.Table: "this alias pivots",
    exp.TableAlias: "this columns",
    exp.Join: "this on using kind side method",
    exp.Lateral: "this view outer alias",
    exp.Pivot: "expressions fields columns unpivot pivot_column_naming include_nulls alias",
    exp.PivotAlias: "this alias",
    exp.Where: "this",
    exp.Having: "this",
    exp.Qualify: "this",
    exp.Group: "expressions grouping_sets cube rollup all",
    exp.GroupingSets: "expressions",
    exp.Cube: "expressions",
    exp.Rollup: "expressions",
    exp.Order: "expressions",
    exp.Ordered: "this desc nulls_first",
    exp.Limit: "expression",
    exp.Offset: "expression",
    exp.Distinct: "expressions",
    # expressions
    exp.Alias: "this alias",
    exp.Aliases: "this expressions",
    exp.Identifier: "this quoted",
    exp.Column: "this table db catalog",
    exp.Dot: _BINARY,
    exp.Star: "except_",
    exp.Literal: "this is_string",
    exp.RawString: "this",
    exp.HexString: "this",
    exp.Boolean: "this",
    exp.Null: "",
    exp.Var: "this",
    exp.Placeholder: "this",
    exp.Paren: "this",
    exp.Tuple: "expressions",
    exp.Neg: "this",
    exp.Not: "this",
    exp.BitwiseNot: "this",
    **dict.fromkeys((exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod), _BINARY),
    exp.Div: f"{_BINARY} typed safe",
    exp.DPipe: f"{_BINARY} safe",
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor), _BINARY),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _BINARY),
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is), _BINARY),
    **dict.fromkeys((exp.Like, exp.ILike), f"{_BINARY} negate"),
    exp.RegexpLike: _BINARY,
    exp.Escape: _BINARY,
    exp.Any: "this",
    exp.All: "this",
    exp.Between: "this low high",
    exp.In: "this expressions query",
    exp.Exists: "this",
    exp.Case: "this ifs default",
    exp.If: "this true",
    exp.Cast: "this to",
    exp.TryCast: "this to safe",
    exp.DataType: "this expressions nested",
    exp.DataTypeParam: "this",
    exp.ColumnDef: "this kind",
    exp.Interval: "this unit",
    exp.IntervalSpan: _BINARY,
    exp.Extract: _BINARY,
    exp.Trim: f"{_BINARY} position",
    exp.Substring: "this start length",
    exp.StrPosition: "this substr",
    exp.Overlay: f"{_BINARY} from_ for_",
    exp.Bracket: "this expressions",
    exp.Lambda: "this expressions",
    exp.Anonymous: "this expressions",
    exp.Filter: _BINARY,
    exp.WithinGroup: _BINARY,
    exp.IgnoreNulls: "this",
    exp.RespectNulls: "this",
    exp.Window: "this partition_by order spec alias over",
    exp.WindowSpec: "kind start start_side end end_side",
}
"""Kinds of nodes of a tree that may be there, and the parts that each may have."""
_NODES: Final = {kind: _names(parts) for kind, parts in _PARTS.items()}

_ROOTS: Final = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
_TYPES: Final = frozenset(
    exp.DType[name]
    for name in _names(
        "BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL TEXT BINARY DATE "
        "TIMESTAMP TIMESTAMPTZ TIMESTAMPNTZ TIMESTAMPLTZ ARRAY MAP STRUCT INTERVAL"
    )
)

AGGREGATES: Final = _names(
    "any any_value approx_count_distinct approx_percentile array_agg avg bit_and bit_or bit_xor "
    "bool_and bool_or collect_list collect_set corr count count_if covar_pop covar_samp every "
    "first first_value grouping grouping_id kurtosis last last_value listagg max max_by mean "
    "median min min_by mode percentile percentile_approx percentile_cont percentile_disc "
    "regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy "
    "skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop "
    "var_samp variance"
)
GENERATORS: Final = _names(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack"
)
FUNCTIONS: Final[Mapping[str, frozenset[str]]] = {
    "aggregate functions": AGGREGATES,
    "generators of rows": GENERATORS,
    "window functions": _names(
        "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number"
    ),
    "numbers": _names(
        "abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling "
        "conv cos cosh cot csc degrees div e exp expm1 factorial floor getbit greatest hypot isnan "
        "least ln log log10 log1p log2 mod nanvl negative pi pmod positive pow power radians rint "
        "round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh "
        "try_add try_divide try_mod try_multiply try_subtract width_bucket"
    ),
    "strings": _names(
        "ascii base64 bit_length btrim char char_length character_length chr concat concat_ws "
        "contains decode elt encode endswith find_in_set format_number format_string hex ilike "
        "initcap instr is_valid_utf8 lcase left len length levenshtein like locate lower lpad "
        "ltrim luhn_check mask octet_length overlay parse_url position printf quote regexp "
        "regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace "
        "regexp_substr repeat replace reverse right rlike rpad rtrim soundex space split "
        "split_part startswith str_to_map substr substring substring_index to_binary to_char "
        "to_number to_varchar translate trim try_parse_url try_to_binary try_to_number "
        "try_url_decode ucase unbase64 unhex upper url_decode url_encode"
    ),
    "dates and times": _names(
        "add_months convert_timezone date_add date_diff date_format date_from_unix_date date_part "
        "date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear "
        "from_unixtime from_utc_timestamp hour last_day make_date make_dt_interval "
        "make_interval make_timestamp make_timestamp_ltz make_timestamp_ntz make_ym_interval "
        "minute month monthname months_between next_day quarter second timestamp_micros "
        "timestamp_millis timestamp_seconds timestampadd timestampdiff to_date to_timestamp "
        "to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp trunc "
        "try_make_interval try_make_timestamp try_to_date try_to_timestamp unix_date unix_micros "
        "unix_millis unix_seconds unix_timestamp weekday weekofyear year"
    ),
    "arrays, maps and structs": _names(
        "aggregate array array_append array_compact array_contains array_distinct array_except "
        "array_insert array_intersect array_join array_max array_min array_position array_prepend "
        "array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip "
        "cardinality element_at exists filter flatten forall get map map_concat map_contains_key "
        "map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with "
        "named_struct reduce sequence size slice sort_array struct transform transform_keys "
        "transform_values try_element_at zip_with"
    ),
    "JSON and CSV": _names(
        "from_csv from_json get_json_object json_array_length json_object_keys schema_of_csv "
        "schema_of_json to_csv to_json"
    ),
    "conditions": _names(
        "coalesce equal_null if ifnull isnotnull isnull nullif nullifzero nvl nvl2 zeroifnull "
        "typeof"
    ),
    "types": _names(
        "bigint binary boolean date decimal double float int smallint string timestamp tinyint"
    ),
    "digests": _names("crc32 hash md5 sha sha1 sha2 xxhash64"),
}
"""Functions of Spark that a query may call, by groups."""
_FUNCTIONS: Final = frozenset().union(*FUNCTIONS.values())

_HIDDEN: Final = _names(
    "current_catalog current_database current_date current_path current_schema current_time "
    "current_timestamp current_timezone current_user grouping__id localtime localtimestamp now "
    "session_user user"
)
"""Names of columns that Spark takes for a call of a function where no column has them."""
_UNIT_FIRST: Final = _names("date_add date_diff dateadd datediff timestampadd timestampdiff")
_UNITS: Final = _names(
    "year quarter month week day dayofyear hour minute second millisecond microsecond"
)
_DAYS: Final = re.compile("(DAY|WEEK|MONTH|QUARTER|YEAR)S?", re.IGNORECASE)
_TEN_YEARS: Final = 3_653
"""Number of days that a sequence of days is reckoned with."""

_COUNTS: Final[Mapping[str, tuple[int, int]]] = {
    "repeat": (1, 10_000),
    "array_repeat": (1, 10_000),
    "stack": (0, 1_000),
    "array_insert": (1, 10_000),
    "space": (0, 10_000),
    "lpad": (1, 10_000),
    "rpad": (1, 10_000),
    "format_number": (1, 100),
    "round": (1, 100),
    "bround": (1, 100),
    "ceil": (1, 100),
    "ceiling": (1, 100),
    "floor": (1, 100),
    "approx_percentile": (2, 1_000_000),
    "percentile_approx": (2, 1_000_000),
}
"""Arguments that say how much a call makes, by index, and the bound that must be read of each."""
_MULTIPLIERS: Final = _names("repeat array_repeat stack")
"""Functions among them that make as many times what they are given."""
_MAX_SEQUENCE: Final = 1_000_000
_RANGE_ARGUMENTS: Final = 3
"""Number of those that say which rows; a fourth would be a number of tasks."""
_MAX_LISTED: Final = 20

_OPERANDS: Final = (
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is),
    *(exp.Like, exp.ILike, exp.RegexpLike, exp.Between, exp.In),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.DPipe, exp.Neg),
    *(exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot),
)
_LOOSE: Final = (exp.And, exp.Or, exp.Not, *_OPERANDS[:13])
"""Operators that bind less than others, or as much, so that a reader may take them otherwise."""


def _refuse(node: exp.Expr, what: str) -> NoReturn:
    raise SqlRefused(f"{_place(node)}{what}")


def _place(node: exp.Expr) -> str:
    """Return where it is, as far as the library has noted it, or else what is around it."""
    around: exp.Expr | None = node
    for _ in range(4):
        if around is None:
            break
        for each in around.bfs():
            if "line" in each.meta:
                column = each.meta["col"] - each.meta["end"] + each.meta["start"]
                return f"line {each.meta['line']}, column {column}: "
        around = around.parent
    return ""


def _words(node: exp.Expr) -> str:
    """Return a node's kind as a person calls it: TABLE SAMPLE."""
    if isinstance(node, exp.Func) and not isinstance(node, exp.Anonymous):
        return f"{node.sql_name()}"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


@dataclass(slots=True)
class _Rows:
    """Size of a query or a relation, as far as it can be read."""

    relations: int = 0
    """Number of relations, those of `WITH` counted as often as they are used."""
    most: int | None = None
    """Maximum number of its rows, if that can be read."""


_Scope = Mapping[str, _Rows]
"""Parts of `WITH` clauses by names in small letters."""


@dataclass(slots=True)
class _Judge:
    arguments: frozenset[str] | None
    small: frozenset[str]
    tables: dict[str, str] = field(default_factory=dict)
    """Arguments that are relations, by name in small letters, as Spark compares names."""
    parameters: set[str] = field(default_factory=set)
    factor: int = 1
    """Maximum by which the query multiplies its rows, all counts taken together."""
    by_name: dict[str, str] = field(default_factory=dict)
    """Arguments by name in small letters."""
    parts: set[str] = field(default_factory=set)
    """Names of the parts of all `WITH` clauses."""
    seen: set[int] = field(default_factory=set)
    """Relations that were looked up."""

    def judge(self, tree: exp.Expr) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of tables and of parameters."""
        if not isinstance(tree, _ROOTS):
            _refuse(tree, f"a function's code is one query (SELECT, VALUES), not {_words(tree)}")
        for name in sorted(self.arguments or ()):
            other = self.by_name.setdefault(name.lower(), name)
            if other != name:
                raise SqlRefused(
                    f"the arguments {other!r} and {name!r} are one name to Spark: rename one"
                )
        self._check_depth(tree)
        nodes = list(tree.walk())
        for node in nodes:
            self._check_node(node)
        found = self._query(tree, {}, frozenset())
        if found.relations > _MAX_RELATIONS:
            raise SqlRefused(
                f"the query has {found.relations:,} relations, those of WITH counted as often as "
                f"they are used, and {_MAX_RELATIONS} are allowed: make several values of it"
            )
        for node in nodes:
            if isinstance(node, (exp.Table, exp.Values)) and id(node) not in self.seen:
                _refuse(node, f"{_shown(node)}: a relation is not allowed here")
        for both in sorted(self.parts & {*self.tables, *self.by_name}):
            raise SqlRefused(f"WITH {both} has the name of a table: rename it in the query")
        for both in sorted({name.lower() for name in self.parameters} & set(self.tables)):
            raise SqlRefused(f"{both!r} is a table and a parameter: give it two names")
        return frozenset(self.tables.values()), frozenset(self.parameters)

    # ------------------------------------------------------------------------- nodes by themselves

    def _check_depth(self, tree: exp.Expr) -> None:
        waiting = [(tree, 0, 0)]
        while waiting:
            node, depth, chain = waiting.pop()
            if depth > _MAX_DEPTH or chain > _MAX_CHAIN:
                _refuse(node, "the query is nested too deeply: make several values of it")
            waiting += [
                (child, depth + (type(child) is not type(node)), chain + 1)
                for child in node.iter_expressions()
            ]

    def _check_node(self, node: exp.Expr) -> None:
        parts = _NODES.get(type(node))
        if parts is None:
            _refuse(node, f"{_words(node)} is not allowed in a function's query")
        if isinstance(node, exp.Table) and node.args.get("db") is not None:
            _refuse(
                node, f"{_shown(node)}: a relation is an argument's name, and has no other part"
            )
        for name, part in node.args.items():
            if name not in parts and part not in (None, False, []):
                _refuse(node, f"{name.strip('_').upper()} is not allowed here in {_words(node)}")
        check = getattr(self, f"_check_{type(node).__name__.lower()}", None)
        if check is not None:
            check(node)
        if isinstance(node, _OPERANDS):
            for key in ("this", "expression", "low", "high"):
                if isinstance(node.args.get(key), _LOOSE):
                    _refuse(node, f"write parentheses around {_shown(node.args[key])}")

    def _check_select(self, node: exp.Select) -> None:
        if not node.expressions:
            _refuse(node, "SELECT has no columns")

    def _check_any(self, node: exp.Any | exp.All) -> None:
        if isinstance(node.this, exp.Query):
            _refuse(node, f"{_shown(node)}: write IN (SELECT …), or EXISTS")

    _check_all = _check_any

    def _check_interval(self, node: exp.Interval) -> None:
        if not isinstance(node.args.get("unit"), (exp.Var, exp.IntervalSpan)):
            _refuse(node, f"{_shown(node)}: an interval is a number and a unit: INTERVAL '1' DAY")

    def _check_identifier(self, node: exp.Identifier) -> None:
        if not node.name or re.search(r"[`\x00-\x1f\x7f]", node.name):
            _refuse(node, "a name cannot be empty, nor have a backquote or a control character")

    def _check_alias(self, node: exp.Alias) -> None:
        if not isinstance(node.args.get("alias"), exp.Identifier):
            _refuse(node, f"{_shown(node)}: expected a name after AS")

    def _check_tablealias(self, node: exp.TableAlias) -> None:
        for each in (node.args.get("this"), *node.columns):
            if each is not None and not isinstance(each, exp.Identifier):
                _refuse(node, f"{_shown(each)}: expected a name")

    def _check_columndef(self, node: exp.ColumnDef) -> None:
        if not isinstance(node.this, exp.Identifier):
            _refuse(node, f"{_shown(node)}: expected a name and a type")

    def _check_dot(self, node: exp.Dot) -> None:
        if not isinstance(node.expression, exp.Identifier):
            _refuse(node, f"{_shown(node)}: functions have no qualified names")

    def _check_var(self, node: exp.Var) -> None:
        if not re.fullmatch(r"\w+", node.name):
            _refuse(node, f"{_shown(node)} is not allowed")

    def _check_hexstring(self, node: exp.HexString) -> None:
        if not re.fullmatch("[0-9a-fA-F]*", node.name):
            _refuse(node, f"{_shown(node)} is no binary literal")

    def _check_literal(self, node: exp.Literal) -> None:
        number = r"\d*\.?\d*(e[+-]?\d+)?"
        if not node.is_string and not re.fullmatch(number, node.name, re.IGNORECASE):
            _refuse(node, f"{_shown(node)} is no number")

    def _check_column(self, node: exp.Column) -> None:
        name = node.name.lower()
        if "table" not in node.args and name in _HIDDEN:
            _refuse(
                node,
                f"{node.name!r} may be a function to Spark: write the relation's name before it, "
                "if it is a column; give the time or user as an argument, if it is not",
            )
        if any(part.name.lower() == "_metadata" for part in node.parts):
            _refuse(node, "'_metadata' says where files are, and is not allowed")

    def _check_placeholder(self, node: exp.Placeholder) -> None:
        name = node.this
        if not isinstance(name, str):
            _refuse(node, "a parameter is a colon and the name of an argument, as in ':rate'")
        self._check_identifier(exp.to_identifier(name, quoted=True))
        if self.arguments is not None and name not in self.arguments:
            _refuse(node, f"the parameter ':{name}' is no argument: {_listed(self.arguments)}")
        self.parameters.add(name)

    def _check_datatype(self, node: exp.DataType) -> None:
        if node.this not in _TYPES:
            _refuse(node, f"the type {_shown(node)} is not allowed")

    def _check_join(self, node: exp.Join) -> None:
        if node.kind not in ("", "INNER", "CROSS", "SEMI", "ANTI", "OUTER"):
            _refuse(node, f"{node.kind} JOIN is not allowed")
        if node.method not in ("", "NATURAL"):
            _refuse(node, f"{node.method} JOIN is not allowed")

    def _check_lateral(self, node: exp.Lateral) -> None:
        if isinstance(node.this, exp.Anonymous):
            if node.this.name.lower() not in GENERATORS:
                _refuse(node, f"LATERAL takes one of {_listed(GENERATORS)}")
        elif not isinstance(node.this, exp.Subquery) or node.args.get("view"):
            _refuse(node, "LATERAL takes a function or a query")
        alias = node.args.get("alias")
        if node.args.get("view") and alias and not re.fullmatch(r"(?a:\w*)", alias.name):
            _refuse(node, f"{alias.name!r}: the name of a LATERAL VIEW has letters and digits only")

    def _check_window(self, node: exp.Window) -> None:
        if node.args.get("over") not in (None, "OVER"):
            _refuse(node, f"{_shown(node)} is not allowed")

    def _check_group(self, node: exp.Group) -> None:
        sets = prod(
            2 ** len(each.expressions) if isinstance(each, exp.Cube) else len(each.expressions) + 1
            for each in node.find_all(exp.Cube, exp.Rollup, exp.GroupingSets)
        )
        if sets > _MAX_GROUPINGS:
            _refuse(node, f"{sets:,} grouping sets are more than {_MAX_GROUPINGS}: group by less")

    def _check_anonymous(self, node: exp.Anonymous) -> None:
        if not isinstance(node.this, str):
            _refuse(node, f"{_shown(node)}: write the name of a function without quotes")
        name, arguments = node.this.lower(), node.expressions
        if name == "range":
            self._check_range(node)
            return
        if name not in _FUNCTIONS:
            _refuse(
                node,
                f"the function {name}() is not among those that a query may call, which read "
                "nothing but their arguments and give the same for the same",
            )
        if name in _UNIT_FIRST:
            self._mark_unit(node)
        if (name, len(arguments)) == ("unix_timestamp", 0):
            _refuse(node, "unix_timestamp() is the time of the run: give it as an argument")
        if name == "approx_count_distinct" and len(arguments) > 1:
            _refuse(node, "approx_count_distinct() takes one argument here")
        if name in ("format_string", "printf"):
            self._check_format(node)
        if name == "sequence":
            self._check_sequence(node)
        if name in _COUNTS:
            self._check_count(node, *_COUNTS[name])

    def _mark_unit(self, node: exp.Anonymous) -> None:
        """Make the unit of a function of dates a keyword, which it is to Spark, not a column."""
        unit, *others = node.expressions or [node]
        if len(others) <= 1:  # without a unit: of days
            return
        if isinstance(unit, exp.Column) and unit.name.lower() in _UNITS and len(unit.parts) == 1:
            unit.replace(exp.Var(this=unit.name.upper()))
        elif not isinstance(unit, exp.Var):
            _refuse(node, f"{_shown(node)}: the first argument is one of {_listed(_UNITS)}")

    def _check_format(self, node: exp.Anonymous) -> None:
        text = node.expressions[0] if node.expressions else None
        if not isinstance(text, exp.Literal) or re.search(r"%\S*\d{4}", text.name):
            _refuse(node, f"{node.name}() takes a literal format, with numbers below 1,000")

    def _check_count(self, node: exp.Anonymous, index: int, most: int) -> None:
        if index >= len(node.expressions):
            return
        low, high = _bounds(node.expressions[index])
        if high is None or high > most or (low is not None and low < -most):
            _refuse(
                node,
                f"argument {index + 1} of {node.name.lower()}() must be known to be at most "
                f"{most:,}: write a number, or least(…, {most})",
            )
        if node.name.lower() in _MULTIPLIERS:
            self._multiply(node, high)

    def _check_sequence(self, node: exp.Anonymous) -> None:
        start, stop, step = [*node.expressions, exp.Null(), exp.Null(), exp.Null()][:3]
        if isinstance(step, exp.Neg):
            step = step.this
        days = isinstance(step, exp.Interval)
        if days and _DAYS.fullmatch(step.text("unit")) and (_bounds(step.this)[0] or 0) > 0:
            self._multiply(node, _TEN_YEARS)
            return
        if isinstance(step, exp.Null) and _is_date(start) and _is_date(stop):
            self._multiply(node, _TEN_YEARS)
            return
        ends = (*_bounds(start), *_bounds(stop))
        known = [each for each in ends if each is not None]
        if days or len(known) < len(ends) or max(known) - min(known) >= _MAX_SEQUENCE:
            _refuse(
                node,
                f"sequence() must be known to have at most {_MAX_SEQUENCE:,} items: write numbers, "
                "or greatest(least(…, 1000), 0), or dates with a step of INTERVAL '1' DAY or more",
            )
        self._multiply(node, max(known) - min(known) + 1)

    def _check_range(self, node: exp.Anonymous) -> None:
        parts = [_bounds(each) for each in node.expressions]
        if not isinstance(node.parent, exp.Table):
            _refuse(node, "range() is a relation")
        if any(low is None or low != high for low, high in parts):
            _refuse(node, "range() takes numbers as they are")

    def _multiply(self, node: exp.Expr, by: int | None) -> None:
        self.factor *= max(1, by or 1)
        if self.factor > _MAX_FACTOR:
            _refuse(
                node,
                f"with {_shown(node)} the query makes more than {_MAX_FACTOR:,} times its rows: "
                "write smaller numbers",
            )

    # ---------------------------------------------------------------------- relations, and scopes

    def _query(self, query: exp.Expr, scope: _Scope, outer: frozenset[str]) -> _Rows:
        """Judge the relations of a query. `outer`: names of those around it that it may use."""
        with_ = query.args.get("with_")
        if with_ is not None:
            scope = self._with(with_, scope)
        if isinstance(query, exp.SetOperation):
            found = self._set_operation(query, scope, outer)
        elif isinstance(query, exp.Subquery):
            found = self._query(query.this, scope, outer)
        elif isinstance(query, exp.Select):
            found = self._select(query, scope, outer)
        elif isinstance(query, exp.Values):
            found = self._values(query, scope, outer)
        else:
            _refuse(query, f"{_shown(query)}: expected a query")
        if query.args.get("pivots"):
            return _Rows(found.relations)
        for key in ("order", "limit", "offset"):
            if not isinstance(query, exp.Select):
                found.relations += self._nested(query.args.get(key), scope, outer)
        limit = query.args.get("limit")
        most = None if limit is None else _bounds(limit.expression)[1]
        return _Rows(found.relations, _least(found.most, most))

    def _with(self, with_: exp.Expr, scope: _Scope) -> _Scope:
        own: dict[str, _Rows] = {}
        for part in with_.expressions:
            name = part.alias.lower()
            if name in own:
                _refuse(part, f"WITH has {part.alias!r} twice: rename one")
            own[name] = self._query(part.this, {**scope, **own}, frozenset())
            self.parts.add(name)
        return {**scope, **own}

    def _set_operation(self, query: exp.Expr, scope: _Scope, outer: frozenset[str]) -> _Rows:
        sides = [query.args["expression"]]
        left = query.args["this"]
        while isinstance(left, exp.SetOperation) and not left.args.get("with_"):
            sides.append(left.args["expression"])  # a long chain, without recursion
            left = left.this
        found = [self._query(side, scope, outer) for side in (left, *sides)]
        most: int | None = 0
        for each in found:
            most = None if most is None or each.most is None else most + each.most
        return _Rows(sum(each.relations for each in found), most)

    def _values(self, values: exp.Expr, scope: _Scope, outer: frozenset[str]) -> _Rows:
        self.seen.add(id(values))
        nested = sum(self._nested(row, scope, outer) for row in values.expressions)
        return _Rows(1 + nested, len(values.expressions))

    def _nested(self, node: exp.Expr | None, scope: _Scope, outer: frozenset[str]) -> int:
        """Judge the queries inside an expression; return the number of their relations."""
        if node is None:
            return 0
        return sum(self._query(each, scope, outer).relations for each in _queries(node))

    def _relation(self, node: exp.Expr, scope: _Scope, outer: frozenset[str]) -> _Rows:
        if isinstance(node, exp.Table):
            found = self._table(node, scope)
            return _Rows(found.relations) if node.args.get("pivots") else found
        if isinstance(node, exp.Lateral):
            if isinstance(node.this, exp.Anonymous):  # rows of the row beside it
                return _Rows(1 + self._nested(node.this, scope, outer), 1)
            found = self._query(node.this, scope, outer)
            if found.most != 1:
                _refuse(node, "LATERAL takes a query of one row, as an aggregate without GROUP BY")
            return found
        return self._query(node, scope, frozenset())

    def _table(self, node: exp.Table, scope: _Scope) -> _Rows:
        self.seen.add(id(node))
        if isinstance(node.this, exp.Anonymous):
            ends = [_bounds(each)[1] or 0 for each in node.this.expressions]
            if node.this.name.lower() != "range" or not 1 <= len(ends) <= _RANGE_ARGUMENTS:
                _refuse(
                    node, f"{_shown(node)}: a relation is an argument, a part of WITH, or range()"
                )
            rows = len(range(*ends)) if ends[2:] != [0] else 0
            if rows > _MAX_SEQUENCE:
                _refuse(node, f"{_shown(node)} has more than {_MAX_SEQUENCE:,} rows")
            return _Rows(1, rows)
        if not isinstance(node.this, exp.Identifier):
            _refuse(node, f"{_shown(node)}: a relation is the name of an argument")
        name = node.this.name.lower()
        if name in scope:
            return scope[name]
        if self.arguments is not None and name not in self.by_name:
            _refuse(
                node,
                f"{node.this.name!r} is neither an argument nor a part of WITH before it: "
                f"{_listed(self.arguments)}",
            )
        self.tables.setdefault(name, self.by_name.get(name, node.this.name))
        return _Rows(1, _SMALL if name in self.small else None)

    def _select(self, select: exp.Select, scope: _Scope, outer: frozenset[str]) -> _Rows:
        first = select.args.get("from_")
        joins = select.args.get("joins") or []
        sources = [] if first is None else [_Source(first.this, None)]
        sources += [_Source(join.this, join) for join in joins]
        before: set[str] = set()
        for source in sources:
            source.rows = self._relation(source.node, scope, outer | before)
            if source.name and source.name in before:
                _refuse(source.node, f"two relations are named {source.name!r} here: rename one")
            before.add(source.name)
        laterals = select.args.get("laterals") or []
        names = frozenset({*before, *(each.alias_or_name.lower() for each in laterals)})
        relations = sum(source.rows.relations for source in sources)
        inside = [
            part
            for key in _NODES[exp.Select] - {"with_", "from_", "joins"}
            for part in parts_of(select.args.get(key))
        ]
        conditions = [part for join in joins for part in parts_of(join.args.get("on"))]
        for part in (*inside, *conditions):
            relations += self._nested(part, scope, outer | names)
        self._check_conditions(select, sources, outer - names)
        return _Rows(max(relations, 1), self._most(select, sources))

    def _most(self, select: exp.Select, sources: list["_Source"]) -> int | None:
        calls = [
            node.name.lower()
            for part in select.expressions
            for node in _own(part, exp.Window)
            if isinstance(node, exp.Anonymous)
        ]
        if select.args.get("laterals") or not GENERATORS.isdisjoint(calls):
            return None
        if select.args.get("group") is None and not AGGREGATES.isdisjoint(calls):
            return 1
        if any(source.is_function or source.rows.most is None for source in sources):
            return None
        return prod(source.rows.most or 0 for source in sources)

    # ------------------------------------------------------------------------ conditions of joins

    def _check_conditions(
        self, select: exp.Select, sources: list["_Source"], outer: frozenset[str]
    ) -> None:
        """Refuse relations that are joined without an equality between them, if none is small.

        A column without its relation's name may be any relation's: the tables are not known here.
        Each such equality counts as one that joins two.
        """
        sources = [source for source in sources if not source.is_function]
        links = _Links([source.name for source in sources])
        for number, source in enumerate(sources):
            self._link(links, number, source)
        where = select.args.get("where")
        links.add(_equalities(where and where.this))
        groups = [
            (prod(sources[number].rows.most or 0 for number in group), sources[group[0]])
            for group in links.groups()
            if all(sources[number].rows.most is not None for number in group)
        ]
        unbounded = [
            sources[group[0]]
            for group in links.groups()
            if any(sources[number].rows.most is None for number in group)
        ]
        if len(unbounded) - links.loose > 1:
            _refuse_join(unbounded[-1])
        groups.sort(key=lambda group: group[0])
        linked = links.loose - max(0, len(unbounded) - 1) + (not unbounded)
        for most, source in groups[: max(0, len(groups) - linked)]:
            self._multiply(source.node, most)
        if sources:
            self._check_correlation(select, outer)

    def _link(self, links: "_Links", number: int, source: "_Source") -> None:
        if source.join is None:
            return
        own = _equalities(source.join.args.get("on"))
        if source.join.args.get("using"):
            links.join(0, number)
        elif not source.join.side and source.join.kind not in ("SEMI", "ANTI"):
            links.add(own)
        elif links.links(own, number):
            links.join(0, number)
        elif source.rows.most is not None:
            self._multiply(source.node, source.rows.most)
            links.join(0, number)
        else:
            _refuse_join(source)

    def _check_correlation(self, select: exp.Select, outer: frozenset[str]) -> None:
        """Refuse a query that is joined with the one around it without an equality."""
        where = select.args.get("where")
        if where is None:
            return
        used = {name for name in _qualifiers(where.this) if name in outer}
        if used and not any(
            (left <= used and left) != (right <= used and right)
            for left, right in map(_sides, _equalities(where.this).values())
            if left and right
        ):
            _refuse(
                where,
                f"the query uses {_listed(used)} of the query around it without an equality "
                "between the two: write one",
            )


@dataclass(slots=True)
class _Source:
    node: exp.Expr
    join: exp.Join | None
    rows: _Rows = field(default_factory=_Rows)

    @property
    def name(self) -> str:
        return self.node.alias_or_name.lower()

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, exp.Lateral)


_Equalities = Mapping[str, tuple[exp.Expr, exp.Expr]]


class _Links:
    """Groups of relations of one FROM that equalities join."""

    def __init__(self, names: list[str]) -> None:
        self._names = {name: number for number, name in enumerate(names) if name}
        self.loose = 0
        """Number of equalities that may join any two."""
        self._above = list(range(len(names)))
        self._columns: dict[str, str] = {}

    def add(self, equalities: _Equalities) -> None:
        for pair in equalities.values():
            left, right = map(self._numbers, pair)
            if None not in left | right:
                if len(left) == len(right) == 1:
                    self.join(*left, *right)
            elif left and right and self._is_new(*map(_print, pair)):
                self.loose += 1

    def links(self, equalities: _Equalities, number: int) -> bool:
        for pair in equalities.values():
            left, right = map(self._numbers, pair)
            if left and right and left != right and {number, None} & (left | right):
                return True
            if left == right == {None}:
                return True
        return False

    def join(self, left: int | None, right: int | None) -> None:
        if left is not None and right is not None:
            self._above[self._top(left)] = self._top(right)

    def groups(self) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for number in range(len(self._above)):
            groups.setdefault(self._top(number), []).append(number)
        return list(groups.values())

    def _numbers(self, side: exp.Expr) -> set[int | None]:
        return {self._names.get(name) for name in _qualifiers(side)}

    def _top(self, number: int) -> int:
        while self._above[number] != number:
            number = self._above[number]
        return number

    def _is_new(self, left: str, right: str) -> bool:
        """Return whether it does not follow from the equalities before."""
        tops = []
        for column in (left, right):
            top = column
            while (above := self._columns.get(top, top)) != top:
                top = above
            tops.append(top)
        self._columns[tops[0]] = tops[1]
        return tops[0] != tops[1]


def _refuse_join(source: _Source) -> NoReturn:
    _refuse(
        source.node,
        f"{_shown(source.node)} is joined without an equality with what is before it: write one "
        "(ON a.x = b.x), or declare one of the two small",
    )


def _equalities(condition: exp.Expr | None) -> dict[str, tuple[exp.Expr, exp.Expr]]:
    """Return the equalities that hold wherever the condition does, by their text."""
    if isinstance(condition, exp.Paren):
        return _equalities(condition.this)
    if isinstance(condition, exp.And):
        both: dict[str, tuple[exp.Expr, exp.Expr]] = {}
        for part in condition.flatten():
            both |= _equalities(part)
        return both
    if isinstance(condition, exp.Or):
        first, *others = [_equalities(part) for part in condition.flatten()]
        return {text: pair for text, pair in first.items() if all(text in each for each in others)}
    if isinstance(condition, (exp.EQ, exp.NullSafeEQ)):
        pair = (condition.this, condition.expression)
        return {" = ".join(sorted(map(_print, pair))): pair}
    return {}


def _sides(pair: tuple[exp.Expr, exp.Expr]) -> tuple[set[str], set[str]]:
    return _qualifiers(pair[0]), _qualifiers(pair[1])


def _qualifiers(node: exp.Expr) -> set[str]:
    """Return the relations that columns name; the empty text is for columns without one."""
    columns = [each for each in _own(node) if isinstance(each, exp.Column)]
    return {each.parts[0].name.lower() if len(each.parts) > 1 else "" for each in columns}


def _own(node: exp.Expr, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the nodes of an expression, but not what is in queries or nodes of these kinds."""
    return (
        each for each in _walk(node, exp.Query, *kinds) if not isinstance(each, (exp.Query, *kinds))
    )


def _queries(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the outermost queries in an expression."""
    return (each for each in _walk(node, exp.Query) if isinstance(each, exp.Query))


def _walk(node: exp.Expr, *kinds: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the nodes down to those of these kinds."""
    return node.walk(prune=lambda each: isinstance(each, kinds))


def parts_of(part: Any) -> list[exp.Expr]:
    parts = part if isinstance(part, list) else [part]
    return [each for each in parts if isinstance(each, exp.Expr)]


def _bounds(node: exp.Expr) -> tuple[int | None, int | None]:
    """Return the least and the greatest integer that it may be, as far as can be read."""
    if isinstance(node, exp.Literal) and re.fullmatch(r"\d{1,18}", node.name):
        return int(node.name), int(node.name)
    if isinstance(node, (exp.Paren, exp.Cast)):
        return _bounds(node.this)
    if isinstance(node, exp.Neg):
        low, high = _bounds(node.this)
        return (None if high is None else -high), (None if low is None else -low)
    if isinstance(node, exp.Anonymous) and node.expressions:
        ends = [_bounds(each) for each in node.expressions]
        lows, highs = ([end for end in side if end is not None] for side in zip(*ends, strict=True))
        if node.name.lower() == "least":
            return (min(lows) if len(lows) == len(ends) else None), min(highs, default=None)
        if node.name.lower() == "greatest":
            return max(lows, default=None), (max(highs) if len(highs) == len(ends) else None)
    return None, None


def _is_date(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        return bool(node.to.this == exp.DType.DATE)
    return isinstance(node, exp.Anonymous) and node.name.lower() in ("to_date", "make_date", "date")


def _least(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _shown(node: Any) -> str:
    try:
        return _excerpt(node.sql(dialect=_Dialect, comments=False))
    except SqlglotError:
        return _words(node)


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = ", …" if len(listed) > _MAX_LISTED else ""
    return ", ".join(listed[:_MAX_LISTED]) + more or "there are none"


# ---------------------------------------------------------------- parameters, and what is constant

_TEXT_MAKERS: Final = (
    FUNCTIONS["strings"]
    | FUNCTIONS["JSON and CSV"]
    | _names("bin conv date_format dayname from_unixtime monthname")
) - _names("schema_of_csv schema_of_json")
"""Functions by which constants become a text that no literal is. A schema begins with a type."""
_TEXT_NODES: Final = (exp.DPipe, exp.Trim, exp.Substring, exp.Overlay, exp.HexString)
_CLOCKS: Final = re.compile(r"[\s\x00-\x20\x7f-\x9f]*(now|today|tomorrow|yesterday)", re.IGNORECASE)
"""Beginning of a text that Spark takes for a time of the run where a date is expected."""
_FOLLOWS_TYPE: Final = FUNCTIONS["dates and times"] | FUNCTIONS["types"]


def bind(
    text: str, parameters: Mapping[str, Any], plain: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Return a judged query as Spark is given it, and arguments: one for each place of a parameter.

    A whole number is a bigint. Lists and objects are one text each, which Spark reads. Where a date
    is expected, Spark takes a constant text such as "today" for a time of the run; so what may be
    one is hidden from it.

    `plain`: arguments, by their names here, that are an int, or text that is not hidden.

    Raises:
        SqlRefused: SQL has no type for a parameter's value.
    """
    tree, arguments = read(text), dict[str, Any]()
    is_apart = any(map(_is_apart, tree.walk()))
    for node in reversed(list(tree.walk(bfs=False))):  # each behind what is in it
        if isinstance(node, exp.Placeholder):
            parameter, name = node.this, f"p{len(arguments)}"
            value = parameters[parameter]
            try:
                _put(node, name, value, is_plain=name in plain, is_apart=is_apart)
                arguments[name] = dumps({"v": value}) if type(value) in (list, dict) else value
            except SqlRefused as error:
                raise SqlRefused(f"the parameter ':{parameter}' {error}") from None
        elif isinstance(node, (exp.Literal, exp.RawString)):
            if _CLOCKS.match(node.name):
                _hide(node)
        elif (
            isinstance(node, _TEXT_NODES)
            or (isinstance(node, exp.Anonymous) and node.name.lower() in _TEXT_MAKERS)
        ) and not any(map(_varies, node.walk(prune=lambda each: isinstance(each, exp.DataType)))):
            _hide(node)
    return _print(tree), arguments


def _varies(node: exp.Expr) -> bool:
    """Return whether Spark holds nothing for constant that has this node."""
    if isinstance(node, exp.Identifier):  # of a column, or what a lambda takes
        return not isinstance(node.parent, exp.Dot) or node.arg_key != "expression"
    is_hidden = isinstance(node, exp.Anonymous) and node.name.lower() == "nullif"
    return is_hidden or isinstance(node, exp.Query)


def _hide(node: exp.Expr, *, until_it_runs: bool = True) -> None:
    """Hide a constant from the rule for times, but where it is evaluated before that.

    What is in `nullif` is constant again after the rule, and a filter of files by it works. But
    Spark applies the rule to the queries in an expression once more.
    """
    around = node.find_ancestor(exp.Values, exp.In)
    if isinstance(around.parent if type(around) is exp.In else around, (exp.Values, exp.Pivot)):
        return
    if until_it_runs:
        name = exp.to_identifier("x", quoted=True)
        items = exp.Anonymous(this="ARRAY", expressions=[node.copy()])
        same = exp.Lambda(this=name, expressions=[name.copy()])
        every = exp.Anonymous(this="TRANSFORM", expressions=[items, same])
        node.replace(exp.Bracket(this=every, expressions=[exp.Literal.number(0)]))
    else:
        node.replace(exp.Anonymous(this="NULLIF", expressions=[node.copy(), exp.Null()]))


def _is_apart(node: exp.Expr) -> bool:
    """Return whether a node is a query in an expression, or beside each row of another."""
    parent = node.parent
    is_part = isinstance(parent, (NoneType, exp.Query, exp.From, exp.Join, exp.CTE))
    return isinstance(node, exp.Query) and (
        not is_part or (isinstance(parent, exp.Select) and node.arg_key == "expressions")
    )


def _put(node: exp.Expr, name: str, value: Any, *, is_plain: bool, is_apart: bool) -> None:
    node.set("this", name)
    if type(value) is int:
        kind = exp.DataType.build("INT" if is_plain else "BIGINT")
        node.replace(exp.Cast(this=node.copy(), to=kind))
    elif type(value) is str:
        around = node.parent
        is_format = isinstance(around, exp.Anonymous) and around.name.lower() not in _FOLLOWS_TYPE
        if not (is_plain and is_format):
            _hide(node, until_it_runs=is_apart)
    elif type(value) in (list, dict):
        schema = _schema(_type_of(value))
        column, *options = map(exp.Literal.string, (f"v {schema}", "mode", "FAILFAST"))
        given = [node.copy(), column, exp.Anonymous(this="MAP", expressions=options)]
        read = exp.Anonymous(this="FROM_JSON", expressions=given)
        found = exp.Dot(this=read, expression=exp.to_identifier("v", quoted=True))
        node.replace(found)
        if "STRING" in schema:
            _hide(found)


_Type: TypeAlias = str | list["_Type"] | dict[str, "_Type"]
"""Type of JSON in SQL: of a list that of its items, of an object those by its keys."""


class _Mixed(SqlRefused):
    """Two values have no type in common."""


def _type_of(value: Any) -> _Type:
    if isinstance(value, list):
        return [_common_of(map(_type_of, value))]
    if isinstance(value, dict):
        return {name: _type_of(each) for name, each in value.items()}
    return _SCALARS[type(value)]


_SCALARS: Final = {
    NoneType: "VOID", bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING",
}  # fmt: skip


def _common_of(kinds: Iterable[_Type]) -> _Type:
    void: _Type = "VOID"
    return reduce(_common, kinds, void)


def _common(one: _Type, other: _Type) -> _Type:
    """Return the type that values of both have in SQL. Raises `_Mixed`."""
    if other in (one, "VOID"):
        return one
    if one == "VOID":
        return other
    if isinstance(one, list) and isinstance(other, list):
        return [_common(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys((*one, *other))
        return {n: _common(one.get(n, "VOID"), other.get(n, "VOID")) for n in names}
    if isinstance(one, str) and isinstance(other, str) and {one, other} == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    raise _Mixed(
        f"has a list of {_schema(one)} and {_schema(other)}, and the items of a list have one type "
        "in SQL: make them alike, or give them as an object"
    )


def _schema(kind: _Type) -> str:
    """Return a type as Spark writes it: a map if all that an object has is of one type."""
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list):
        return f"ARRAY<{_schema(kind[0])}>"
    try:
        return f"MAP<STRING, {_schema(_common_of(kind.values()))}>"
    except _Mixed:
        pass
    if len({name.lower() for name in kind}) < len(kind):
        raise SqlRefused(
            "has an object with values of several types, and keys that are one name to Spark: it "
            "does not tell upper from lower case: rename one"
        )
    names = {name: name.replace("`", "``") for name in kind}
    return f"STRUCT<{', '.join(f'`{names[n]}`: {_schema(kind[n])}' for n in sorted(kind))}>"
