"""Parameters of queries: JSON as Spark takes it, by type, and no time of the run by any way."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from rebaser_server.compute.functions.sql import SqlRefused, bind, judge
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query, QueryFailed
from tests.helpers.table_sheet import ORDERS, TableSheet

pytestmark = pytest.mark.spark


async def value_of(executor: SparkExecutor, code: str, **parameters: Any) -> Any:
    """The one value that a query gives."""
    return await executor.run_query(Query(judge(code).text, {}, parameters, None), "", "")


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
            await executor.run_query(Query(text, {}, given, target), "", "")


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


SCALARS = (None, True, 0, 1, -7, 2**40, 0.5, -0.0, "", "1", "x", "2026-01-31", "true", "1e2")


def as_type(value: Any, kind: str) -> Any:  # noqa: PLR0911 - one for each type
    """What `try_cast` makes of a JSON value, by Python."""
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else None
    try:
        match kind:
            case "boolean":
                if text is not None:
                    return {"true": True, "1": True}.get(text)
                return bool(value)
            case "bigint":
                return int(text) if text is not None else int(value)
            case "double":
                return float(text) if text is not None else float(value)
            case "decimal(20,3)":
                number = float(text) if text is not None else float(value)
                return int(number) if number == int(number) else number
            case "string":
                return str(value).lower() if isinstance(value, bool) else str(value)
            case _:
                return None if text is None else dt.date.fromisoformat(text).isoformat()
    except ValueError:
        return None


CASTS = ("boolean", "bigint", "double", "decimal(20,3)", "string", "date")


async def test_every_scalar_is_cast_as_any_other_value_of_its_type(executor: SparkExecutor) -> None:
    """Each kind of JSON to each type, as Python has it; a date is made of text alone."""
    given = {f"p{number}": value for number, value in enumerate(SCALARS)}
    pairs = {
        f"{name} {kind}": (value, kind)
        for name, value in given.items()
        for kind in CASTS
        if kind != "date" or isinstance(value, str | None)
    }
    codes = {
        key: f"try_cast(:{key.partition(' ')[0]} AS {kind})" for key, (_, kind) in pairs.items()
    }

    found = await values_of(executor, codes, **given)

    assert {key: (*pairs[key], found[key]) for key in pairs} == {
        key: (value, kind, as_type(value, kind)) for key, (value, kind) in pairs.items()
    }


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
