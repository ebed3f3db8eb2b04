"""Parameters of queries: JSON as Spark takes it, by type, and no time of the run by any way."""

import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from rebaser_server.compute.functions.sql import SqlRefused, bind, judge
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, QueryFailed
from tests.helpers.table_sheet import ORDERS, TableSheet

pytestmark = pytest.mark.spark


async def value_of(executor: SparkExecutor, code: str, **parameters: Any) -> Any:
    """The one value that a query gives."""
    return await SparkQueries(executor).run_query(Query(judge(code).text, {}, parameters, None), "")


async def values_of(
    executor: SparkExecutor, expressions: dict[str, str], **parameters: Any
) -> dict[str, Any]:
    """The value of each expression, or its type with `typeof`."""
    fields = ", ".join(f"'{name}', {code}" for name, code in expressions.items())
    found: dict[str, Any] = await value_of(executor, f"SELECT named_struct({fields})", **parameters)
    return found


PIVOT = "(SELECT DATE '2026-01-01' d, 'a' k) PIVOT (max(datediff(d, 'to'||'day')) FOR k IN ('a'))"
CLOCKS = [
    "DATE 'today'",
    "CAST('now' AS timestamp)",
    "CAST(' Yesterday UTC' AS timestamp_ntz)",
    "CAST('now Etc/GMT+1' AS timestamp)",
    "CAST('\\u0001now' AS timestamp)",
    "CAST('no'||'w' AS timestamp)",
    "to_date(concat('to', 'day'))",
    "CAST(upper('today') AS date)",
    "CAST(CASE WHEN 1 = 1 THEN concat('to', 'day') END AS date)",
    "CAST(chr(110)||chr(111)||chr(119) AS timestamp)",
    "CAST(conv(30191, 10, 36) AS timestamp)",
    "CAST(CAST(X'6E6F77' AS string) AS timestamp)",
    "CAST(decode(unhex('6E6F77'), 'utf-8') AS timestamp)",
    "CAST(split('a,today', ',')[1] AS date)",
    "CAST(element_at(array(concat('to', 'day')), 1) AS date)",
    "CAST(from_json('{\"a\": \"today\"}', 'a string').a AS date)",
    "CAST(get_json_object('{\"a\": \"today\"}', '$.a') AS date)",
    "CAST(str_to_map('a:today')['a'] AS date)",
    "CAST(date_format(DATE '2026-01-01', '''today''') AS date)",
    "CAST(substring('xtoday' FROM 2) AS date)",
    "CAST(trim(BOTH 'x' FROM 'xtodayx') AS date)",
    "datediff('tomorrow', DATE '2026-01-01')",
    "year(:day)",
    "CAST(:day AS date)",
    "CAST(:to||'day' AS date)",
    "CAST(concat(:to, 'day') AS date)",
    "to_date(:day)",
    "to_timestamp(:day)",
    "date_add(:day, 1)",
    "DATE '2026-01-01' < :day",
    "CASE WHEN 1 = 1 THEN :day ELSE DATE '2026-01-01' END",
    "coalesce(:day, DATE '2026-01-01')",
    "CAST(:days[0] AS date)",
    "CAST(:deep.a[0].b AS date)",
    "CAST(map_keys(:counts)[0] AS date)",
    "CAST(chr(:codes[0])||chr(:codes[1])||chr(:codes[2]) AS timestamp)",
    "(SELECT CAST(:day AS date))",
    f"(SELECT * FROM {PIVOT})",  # noqa: S608
    "(SELECT max(CAST('to'||'day' AS date)) FROM range(2))",
    "(SELECT max(CAST(:day AS date)) FROM range(2))",
    "(SELECT max(CAST(:days[0] AS date)) FROM range(2))",
    "(SELECT max(CAST('today' AS date)) FROM range(2) WHERE EXISTS (SELECT 1))",
    "(WITH a AS (SELECT CAST(:day AS date) AS d FROM range(2)) SELECT (SELECT max(d) FROM a))",
    "(SELECT max(1) FROM range(2) WHERE CAST(:day AS date) IN (SELECT DATE '2026-01-01'))",
    "transform(array(1), x -> CAST(:day AS date))[0]",
    "to_char(5, date_format(CAST(:day AS date), :format))",
]
GIVEN = {
    "day": " \tToday ",
    "to": "to",
    "days": ["today"],
    "deep": {"a": [{"b": "now", "c": 1}], "d": 1},
    "counts": {"today": 1},
    "codes": [110, 111, 119],
    "format": "'999'",
}


@pytest.mark.parametrize("code", CLOCKS)
async def test_no_text_is_a_time_of_the_run(
    executor: SparkExecutor, tmp_path: Path, code: str
) -> None:
    """As a value, and in rows that are written: the text is no date, so the query fails."""
    given = {name: value for name, value in GIVEN.items() if f":{name}" in code}
    text = judge(f"SELECT {code} AS x").text

    for target in (None, f"file://{tmp_path}/it"):
        with pytest.raises(QueryFailed, match=r"(?i)cannot be|malformed|to_char"):
            await SparkQueries(executor).run_query(Query(text, {}, given, target), "")


async def test_a_time_of_day_alone_is_of_the_day_of_the_run_unless_a_format_reads_it(
    executor: SparkExecutor,
) -> None:
    """As docs/functions.md warns."""
    before = datetime.now(UTC).date()
    casts = {
        "cast": "string(CAST(:opens AS timestamp))",
        "read": "string(to_timestamp(:opens, 'HH:mm'))",
    }
    found = await values_of(executor, casts, opens="12:30")
    after = datetime.now(UTC).date()

    assert found["cast"] in [f"{day} 12:30:00" for day in (before, after)]
    assert found["read"] == "1970-01-01 12:30:00"


async def test_a_parameter_may_be_a_row_or_a_column_of_a_pivot(executor: SparkExecutor) -> None:
    """Where Spark takes what is constant already while it reads the query."""
    pivot = "SELECT * FROM (SELECT 'now' AS k, 1 AS n) PIVOT (sum(n) FOR k IN (:k))"

    assert await value_of(executor, pivot, k="now") == 1
    assert await value_of(executor, "VALUES (:k)", k="now") == "now"


async def test_words_of_time_are_text(executor: SparkExecutor) -> None:
    """Where no date is expected, they are what they say."""
    found = await values_of(
        executor,
        {"a": "'today'", "b": ":day", "c": "try_cast(:day AS date)", "d": "upper('now')"},
        day="now",
    )

    assert found == {"a": "today", "b": "now", "c": None, "d": "NOW"}


async def test_whole_numbers_are_bigint(executor: SparkExecutor) -> None:
    """But where Spark takes an int alone: the type does not depend on how large they are."""
    typed = {"small": "typeof(:small)", "large": "typeof(:large)", "cents": ":small * 100"}
    found = await values_of(executor, typed, small=50_000_000, large=3_000_000_000)
    ints = {
        "day": "DATE '2026-01-01' + :n",
        "next": "date_add(DATE '2026-01-01', :n)",
        "item": "element_at(array('a', 'b'), :n)",
        "part": "substring('abc', :n, :n)",
        "sum": "typeof(:n)",
        "shown": "to_char(5, :format)",
        "type": "schema_of_json(:json)",
    }

    assert found == {"small": "bigint", "large": "bigint", "cents": 5_000_000_000}
    assert await values_of(executor, ints, n=2, format="9", json='{"a": 1}') == {
        "day": "2026-01-03",
        "next": "2026-01-03",
        "item": "b",
        "part": "bc",
        "sum": "bigint",
        "shown": "5",
        "type": "STRUCT<a: BIGINT>",
    }
    assert await value_of(executor, "SELECT id FROM range(9) LIMIT :n OFFSET :m", n=1, m=7) == 7
    with pytest.raises(QueryFailed, match=r"out of range|overflow"):
        await value_of(executor, "SELECT id FROM range(9) LIMIT :n", n=3_000_000_000)


JSON = {
    "null": (None, "void"),
    "true": (True, "boolean"),
    "int": (-(2**63), "bigint"),
    "float": (-0.0, "double"),
    "text": ("grün\u0000'\\\"${x}\n", "string"),
    "ints": ([2**63 - 1, None, 0], "array<bigint>"),
    "numbers": ([1, 0.5, -0.0, 5e-324, 1.7976931348623157e308], "array<double>"),
    "bools": ([True, None], "array<boolean>"),
    "texts": (["today", "", None], "array<string>"),
    "nothing": ([], "array<void>"),
    "nulls": ([None], "array<void>"),
    "lists": ([[1], [], None, [0.5]], "array<array<double>>"),
    "empty": ({}, "map<string,void>"),
    "counts": ({"a": 1, "A": 2, "": None}, "map<string,bigint>"),
    "rates": ({"a": 1, "b": 2.5}, "map<string,double>"),
    "nested": ({"a": [1], "b": []}, "map<string,array<bigint>>"),
    "mixed": ({"a": 1, "b c": "x", "`": [True]}, "struct<`:array<boolean>,a:bigint,b c:string>"),
    "rows": (
        [{"s": "a", "n": 1}, {"s": "b", "n": 2, "x": 0.5}],
        "array<struct<n:bigint,s:string,x:double>>",
    ),
}


def as_given(value: Any, like: Any) -> Any:
    """What comes back, without the nulls of keys that an object did not have."""
    if isinstance(like, dict):
        return {
            name: as_given(each, like.get(name)) for name, each in value.items() if name in like
        }
    if isinstance(like, list):
        return [as_given(*pair) for pair in zip(value, like, strict=True)]
    return value


async def test_every_kind_of_json_arrives_as_it_is(executor: SparkExecutor) -> None:
    """With the type that the documentation names."""
    given = {name: value for name, (value, _) in JSON.items()}
    found = await values_of(executor, {name: f":{name}" for name in JSON}, **given)
    types = await values_of(executor, {name: f"typeof(:{name})" for name in JSON}, **given)

    assert types == {name: kind for name, (_, kind) in JSON.items()}
    for name, value in given.items():
        assert json.dumps(as_given(found[name], value), sort_keys=True) == json.dumps(
            value if name not in ("numbers", "lists", "rates") else _floats(value), sort_keys=True
        )


def _floats(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_floats, value))
    if isinstance(value, dict):
        return {name: _floats(each) for name, each in value.items()}
    return float(value) if type(value) is int else value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["a", 1], "':p' has a list of STRING and BIGINT, and the items of a list have one type"),
        ([[1], {"a": 1}], "has a list of ARRAY<BIGINT> and MAP<STRING, BIGINT>"),
        ([True, 1], "has a list of BOOLEAN and BIGINT"),
        ({"a": 1, "A": "x"}, "keys that are one name to Spark"),
    ],
)
async def test_what_has_no_type_is_refused_by_name(
    executor: SparkExecutor, value: Any, says: str
) -> None:
    with pytest.raises(SqlRefused, match="':p'") as refused:
        await value_of(executor, "SELECT :p", p=value)

    assert says in str(refused.value)


async def test_a_list_of_many_items_is_one_argument(executor: SparkExecutor) -> None:
    """Ten thousand, beside rows: the text that Spark plans is that for one."""
    many = [f"day {number}" for number in range(10_000)]
    code = "SELECT count(*) FROM range(20000) WHERE array_contains(:many, concat('day ', id))"

    text, arguments = bind(judge(code).text, {"many": many})

    assert (text, len(arguments)) == (bind(judge(code).text, {"many": ["day 1"]})[0], 1)
    assert await value_of(executor, code, many=many) == 10_000


KINDS: dict[str, list[Any]] = {
    "void": [None],
    "boolean": [True, False],
    "bigint": [
        *(0, 1, -1, 7, 127, 128, -129, 2**15, 2**31 - 1, 2**31, -(2**31) - 1, 99_999_999),
        *(10**8, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)),
    ],
    "double": [
        *(0.0, -0.0, 0.1, -0.5, 1.5, 2.5, 1e2, 127.9, 128.0, 2.0**31, 2.0**53, 2.0**63),
        *(99_999_999.99, 99_999_999.995, 1e20, 3.5e38, 1e308, 5e-324),
    ],
    "string": [
        *("", " ", "x", "grün", "日本", "\U0001f642", "a\u0000b", 'it\'s \\ "x" ${x} :p', "null"),
        *("0", "1", "-0", "+1", " 7 ", "1e2", "0.1", "-0.0", "1e308", "1e400", "NaN", "-Infinity"),
        *("127", "128", "2147483648", "9223372036854775807", "9223372036854775808", "1_000", "0x1"),
        *("12345678.90", "12345678.905", "123456789.00", "12345678901234567890.5", "1,5", "10%"),
        *("true", "FALSE", "t", "f", "yes", "no", "on", "now", "today", "tomorrow", "yesterday"),
        *(" Today ", "NOW", "epoch", "now UTC", "today Europe/Berlin", "2026-01-31", "2026-02-30"),
        *("2026-1-1", "2026", "12345-06-07", "-0052-09-27", "0000-01-01", "2026-01-31T12:00:00"),
        *("2026-01-31 12:00:00.123456789", "2026-01-31T12:00:00Z", "2026-03-29T02:30:00+02:00"),
        *("2026-03-29T02:30:00 Europe/Berlin", "24:00:00", "INTERVAL '1' DAY", "[1]"),
        *('{"a": 1}', "x" * 70_000),
    ],
    "array<void>": [[], [None]],
    "array<bigint>": [[0], [2**63 - 1, None, -1], list(range(10_000))],
    "array<double>": [[0.5, -0.0, None], [1e308]],
    "array<boolean>": [[True, None, False]],
    "array<string>": [
        ["today", "", None, "1"],
        ["now"],
        ["2026-01-31", "tomorrow"],
        [f"day {number}" for number in range(10_000)],
    ],
    "array<array<bigint>>": [[[1], [], None]],
    "array<map<string,string>>": [[{"today": "now"}, {}]],
    "map<string,void>": [{}, {"a": None}],
    "map<string,bigint>": [{"a": 1, "A": 2, "": None, "b c": 3}, {"1": 1, "today": 2}],
    "map<string,string>": [{"now": "today", "`": "1", "a.b": "", "\u0000": "x"}],
    "map<string,map<string,bigint>>": [{"a": {"b": 1}, "c": {}}],
    "struct<a:bigint,b:string>": [{"a": 1, "b": "today"}, {"a": -1, "b": "2026-01-31"}],
    "struct<`:string,a.b:bigint,now:array<string>>": [{"`": "`", "a.b": 1, "now": ["now"]}],
}
"""JSON by the type that a query has it as."""

CASTS = [
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)"),
    *("decimal(38,0)", "string", "date", "timestamp", "timestamp_ntz", "binary", "array<string>"),
    *("array<bigint>", "array<date>", "array<decimal(10,2)>", "array<array<string>>"),
    *("array<map<date,date>>", "map<string,string>", "map<string,timestamp>", "map<date,string>"),
    *("map<string,map<string,string>>", "struct<a:double,b:date>", "struct<x:string,y:string>"),
]


def quoted(kind: str) -> str:
    """The type with its odd names as SQL has them."""
    return kind.replace("<`:", "<````:").replace("a.b:", "`a.b`:")


def as_text(code: str, kind: str) -> str:
    """An expression for all of the value: of bytes their digits, since JSON has no bytes."""
    cast = f"try_cast({code} AS {kind})"
    return f"hex({cast})" if kind == "binary" else f"to_json(named_struct('v', {cast}))"


@pytest.fixture(scope="module")
def oracle(executor: SparkExecutor) -> Iterator[Any]:
    """Spark itself, for columns: what is not constant is no time of the run to it."""
    with executor._session.job("sql", "columns") as spark:
        session = spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.conf.set("spark.sql.ansi.enabled", "true")
        yield session


def castable(rows: Any, casts: dict[str, str]) -> list[str]:
    """The types to which Spark casts a column."""
    legal = []
    for cast, code in casts.items():
        with suppress(AnalysisException):
            rows.selectExpr(code)
            legal.append(cast)
    return legal


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
async def test_every_cast_of_a_parameter_is_that_of_a_column(
    executor: SparkExecutor, oracle: Any, kind: str
) -> None:
    """Each kind of JSON to each type: the value that Spark has, or a refusal where it has none."""
    values = KINDS[kind]
    numbered = oracle.createDataFrame([*enumerate(values)], f"n int, c {quoted(kind)}").coalesce(1)
    legal = castable(numbered, {cast: as_text("c", cast) for cast in CASTS})
    rows = numbered.selectExpr("n", *(as_text("c", cast) for cast in legal)).orderBy("n").collect()
    expected = {cast: [row[number] for row in rows] for number, cast in enumerate(legal, 1)}
    found = dict[str, Any]()
    for start in range(0, len(values), 12):
        numbers = range(start, min(start + 12, len(values)))
        casts = {f"{cast} {n}": as_text(f":p{n}", cast) for n in numbers for cast in expected}
        types = {f"typeof {n}": f"typeof(:p{n})" for n in numbers}
        given = {f"p{n}": values[n] for n in numbers}
        found |= await values_of(executor, casts | types, **given)

    assert {found.pop(f"typeof {number}") for number in range(len(values))} == {kind}
    assert found == {
        f"{cast} {n}": text for cast in expected for n, text in enumerate(expected[cast])
    }
    strictly = castable(numbered, {cast: f"CAST(c AS {cast})" for cast in CASTS})
    refused = [(cast, values[0]) for cast in CASTS if cast not in strictly]
    failing = [
        (cast, value)
        for cast, texts in expected.items()
        for value, text in zip(values, texts, strict=True)
        if text in (None, "{}") and value not in (None, {})
    ]
    random.Random(kind).shuffle(failing)
    for cast, value in (*refused, *failing[:20]):
        with pytest.raises(QueryFailed) as caught:
            await value_of(executor, f"SELECT CAST(:p AS {cast}) AS x", p=value)
        # Of a long text, the kind of the error is what is left of its message.
        said = r"(?i)cannot|overflow|out of range|malformed|CAST_INVALID_INPUT"
        assert re.search(said, str(caught.value)), cast


@pytest.mark.parametrize(
    "name", ["größe", "a b", "t-1", "it's", 'a"b', "select", "Order", "1", "a.b"]
)
async def test_any_name_of_a_value_may_be_an_argument(sheet: TableSheet, name: str) -> None:
    """A table and a parameter, in backquotes."""
    sheet.upload(name, ORDERS)
    sheet.source("n", 2)
    inputs = {name: name, "n" if name != "n" else "m": "n"}
    sheet.dependent("rows", f"-- returns: value\nSELECT count(*) * :n FROM `{name}`", inputs, "sql")
    sheet.dependent("number", f"-- returns: value\nSELECT :`{name}` * 3", {name: "n"}, "sql")

    await sheet.compute()

    assert (sheet.value("rows"), sheet.value("number")) == (12, 6)
