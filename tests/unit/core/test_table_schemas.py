"""The columns of a table: which types are kept, and what they are called elsewhere."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from rebaser_core.table_schemas import (
    NotATable,
    arrow_schema,
    cast,
    columns_of,
    decode_rows,
    encode_rows,
    kept_schema,
    rows_of,
    spark_fields,
)


@pytest.mark.parametrize(
    ("kind", "kept", "in_sql"),
    [
        (pa.int8(), pa.int8(), "tinyint"),
        (pa.uint8(), pa.int16(), "smallint"),
        (pa.uint16(), pa.int32(), "int"),
        (pa.uint32(), pa.int64(), "bigint"),
        (pa.uint64(), pa.decimal128(20, 0), "decimal(20,0)"),
        (pa.float16(), pa.float32(), "float"),
        (pa.float64(), pa.float64(), "double"),
        (pa.bool_(), pa.bool_(), "boolean"),
        (pa.decimal128(12, 2), pa.decimal128(12, 2), "decimal(12,2)"),
        (pa.large_string(), pa.string(), "string"),
        (pa.string_view(), pa.string(), "string"),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string(), "string"),
        (pa.binary(3), pa.binary(), "binary"),
        (pa.date64(), pa.date32(), "date"),
        (pa.timestamp("ns"), pa.timestamp("us"), "timestamp_ntz"),
        (pa.timestamp("s", "Europe/Oslo"), pa.timestamp("us", "UTC"), "timestamp"),
        (pa.large_list(pa.string_view()), pa.list_(pa.string()), "array<string>"),
        (
            pa.map_(pa.string(), pa.uint8()),
            pa.map_(pa.string(), pa.int16()),
            "map<string,smallint>",
        ),
        (
            pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.date32()))]),
            pa.struct([("a", pa.int16()), ("b", pa.list_(pa.date32()))]),
            "struct<a:smallint,b:array<date>>",
        ),
    ],
)
def test_a_type_is_kept_as_one_that_holds_each_of_its_values(
    kind: pa.DataType, kept: pa.DataType, in_sql: str
) -> None:
    """Spark's description of it leads back to it."""
    schema = kept_schema(pa.schema([pa.field("a", kind), pa.field("b", kind, nullable=False)]))
    fields = spark_fields(schema)

    assert schema.types == [kept, kept]
    assert arrow_schema(fields) == schema
    assert [(each.name, each.type, each.nullable) for each in columns_of(fields)] == [
        ("a", in_sql, True),
        ("b", in_sql, False),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.duration("s"),
        pa.time64("us"),
        pa.month_day_nano_interval(),
        pa.decimal256(50),
        pa.list_(pa.null()),
        pa.struct([("a", pa.duration("s"))]),
    ],
)
def test_another_type_is_refused_by_the_name_of_its_column(kind: pa.DataType) -> None:
    with pytest.raises(NotATable, match="column 'a' is of type"):
        kept_schema(pa.schema([("a", kind)]))


def test_a_type_that_arrow_does_not_have_is_refused() -> None:
    fields = [{"name": "a", "type": "variant", "nullable": True}]

    with pytest.raises(NotATable, match="the type variant cannot be read as Arrow"):
        arrow_schema(fields)


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame({"a": [["x"], None], "b": [{"c": "y"}, None]}),
        pl.DataFrame({"a": [date(1, 1, 1)], "b": [datetime(9999, 12, 31, tzinfo=UTC)]}),
        pl.DataFrame({"a": ["x", "y"]}, schema={"a": pl.Categorical}),
        pa.table({"a": pa.array([2**64 - 1], pa.uint64()), "b": [Decimal("1.50")]}),
    ],
)
def test_rows_keep_their_values_in_kept_types_and_on_the_way(table: Any) -> None:
    [batch] = pa.table(table).combine_chunks().to_batches()

    kept = cast(batch, kept_schema(batch.schema))
    read = decode_rows(encode_rows(kept))

    assert read == kept
    assert read.to_pylist() == batch.to_pylist()


def test_rows_without_columns_of_the_schema_are_an_empty_batch() -> None:
    empty = pa.RecordBatch.from_pylist([], pa.schema([("a", pa.int64())]))

    assert decode_rows(encode_rows(empty)) == empty


def test_cells_that_python_has_not_are_text() -> None:
    """Days before year 1 and behind 9999, and text that is no UTF-8; others stay as they are."""
    broken = pa.array([b"A\xff", b"fine", None], pa.binary()).view(pa.string())
    days = pa.array([3_789_643, -738_000, None], pa.int32()).cast(pa.date32())
    moments = pa.array([-738_000 * 86_400 * 10**6 + 5, 0, None], pa.timestamp("us", "UTC"))
    table = pa.table(
        {
            "text": broken,
            "day": days,
            "at": moments,
            "texts": pa.ListArray.from_arrays([0, 2, 3, 3], broken),
            "both": pa.StructArray.from_arrays([broken, days], ["text", "day"]),
            "map": pa.MapArray.from_arrays([0, 1, 2, 2], pa.array(["a", "b"]), broken[:2]),
        }
    )

    assert rows_of(table) == [
        {
            "text": "A\\xff",
            "day": "12345-09-10",
            "at": "-0051-06-05T00:00:00.000005+00:00",
            "texts": ["A\\xff", "fine"],
            "both": {"text": "A\\xff", "day": "12345-09-10"},
            "map": [("a", "A\\xff")],
        },
        {
            "text": "fine",
            "day": "-0051-06-05",
            "at": datetime(1970, 1, 1, tzinfo=UTC),
            "texts": [None],
            "both": {"text": "fine", "day": "-0051-06-05"},
            "map": [("b", "fine")],
        },
        {
            "text": None,
            "day": None,
            "at": None,
            "texts": [],
            "both": {"text": None, "day": None},
            "map": [],
        },
    ]


def test_a_day_beyond_those_of_arrow_has_its_number() -> None:
    """The greatest one stands for infinity in DuckDB."""
    far = pa.array([(1 << 31) - 1], pa.int32()).cast(pa.date32())

    assert rows_of(pa.table({"day": far})) == [{"day": "<value out of range: 2147483647>"}]
