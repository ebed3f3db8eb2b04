"""One value of a query as JSON: a text, a number or a list for each type of Spark."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rebaser_server.compute.json_values import NotJson
from rebaser_server.compute.spark.spark_call import SparkQueries
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.compute.tables import Query
from tests.helpers.table_sheet import TableSheet

pytestmark = pytest.mark.spark

VALUES: dict[str, Any] = {
    "true": True,
    "CAST(1 AS tinyint)": 1,
    "9223372036854775807L": 2**63 - 1,
    "CAST(0.5 AS float)": 0.5,
    "-0.0D": -0.0,
    "12.50": 12.5,
    "12.00": 12,
    "CAST(0.1 AS decimal(38,9))": 0.1,
    "CAST(1234567890123456789.5 AS decimal(38,9))": "1234567890123456789.5",
    "CAST(12345678901234567890123456789 AS decimal(38,0))": "12345678901234567890123456789",
    "CAST(-0.12345678901234567890 AS decimal(38,20))": "-0.1234567890123456789",
    "'text'": "text",
    "X'00FF'": "AP8=",
    "DATE '2026-01-31'": "2026-01-31",
    "DATE '+12345-06-07'": "12345-06-07",
    "DATE '-0052-09-27'": "-0052-09-27",
    "TIMESTAMP '2026-11-01 00:00:00Z'": "2026-11-01T00:00:00",
    "TIMESTAMP '2026-11-01 01:30:00.5 America/New_York'": "2026-11-01T05:30:00.500000",
    "TIMESTAMP '+12345-06-07 00:00:00Z'": "12345-06-07T00:00:00",
    "TIMESTAMP_NTZ '2026-11-01 01:30:00'": "2026-11-01T01:30:00",
    "array(1, NULL)": [1, None],
    "array(DATE '+12345-06-07', DATE '2026-01-01')": ["12345-06-07", "2026-01-01"],
    "named_struct('a', 1.5, 'b', X'01')": {"a": 1.5, "b": "AQ=="},
    "map(true, 1, false, 2)": {"true": 1, "false": 2},
    "map(1.5D, 'x', 2D, 'y')": {"1.5": "x", "2.0": "y"},
    "map(DATE '2026-01-31', array(map(1, NULL)))": {"2026-01-31": [{"1": None}]},
    "map()": {},
    "NULL": None,
}


@pytest.fixture(params=["UTC", "America/New_York"])
def time_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A daemon's time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("time_zone")
async def test_each_type_has_its_text(executor: SparkExecutor) -> None:
    """As the documentation has it, in UTC wherever the daemon is."""
    fields = ", ".join(f"'{number}', {code}" for number, code in enumerate(VALUES))
    query = Query(f"SELECT named_struct({fields})", {}, {}, None)

    found = await SparkQueries(executor).run_query(query, "")

    assert dict(zip(VALUES, map(repr, found.values()), strict=True)) == {
        code: repr(value) for code, value in VALUES.items()
    }


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("CAST(X'41FF' AS string)", "text that is no UTF-8"),
        ("array(CAST(X'FF' AS string))", "text that is no UTF-8"),
        ("INTERVAL '1' DAY", "the type interval, which JSON has not"),
        ("INTERVAL '1' MONTH", "the type interval, which JSON has not"),
        ("make_interval(1)", "the type interval, which JSON has not"),
        ("parse_json('1')", "the type variant, which JSON has not"),
    ],
)
async def test_what_json_has_not_is_refused(executor: SparkExecutor, code: str, says: str) -> None:
    """With its name, and what to do."""
    with pytest.raises(NotJson, match=says):
        await SparkQueries(executor).run_query(Query(f"SELECT {code}", {}, {}, None), "")


async def test_numbers_that_are_none_fail_their_value(sheet: TableSheet) -> None:
    sheet.query("it", "-- returns: value\nSELECT double('NaN')")

    await sheet.compute()

    assert sheet.state()["it"][0] == "failed"
    assert "nan" in sheet.value("it")
