"""The digest of a table's rows, beside DuckDB's difference of the rows by their types."""

import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from rebaser_server.values.column_hashes import ContentDigest

NUMBERS = [0.0, -0.0, 1.5, float("nan"), None]
DRAWN: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int64(), [0, 1, -1, None]),
    "number": (pa.float64(), NUMBERS),
    "short": (pa.float32(), NUMBERS),
    "text": (pa.string(), ["", "a", "b", "ab", None]),
    "bytes": (pa.binary(), [b"", b"\0", b"a", None]),
    "exact": (pa.decimal128(12, 2), [Decimal("0.00"), Decimal("1.10"), None]),
    "list": (pa.list_(pa.float64()), [[], [None], [0.0], [-0.0], [0.0, 0.0], None]),
    "inner": (
        pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        [{"a": None, "b": None}, {"a": 0, "b": []}, {"a": 0, "b": [""]}, None],
    ),
}
SEEN = {
    # DuckDB takes -0.0 for 0.0, and tells them apart as text.
    "number": "number::VARCHAR",
    "short": "short::VARCHAR",
    "list": "list_transform(list, lambda x: x::VARCHAR)",
}


def digest(table: pa.Table) -> str:
    found = ContentDigest()
    for batch in table.to_batches():
        found.add(batch)
    return found.text


def differ(one: pa.Table, other: pa.Table) -> bool:
    """Whether DuckDB finds a row that one has more often than the other."""
    columns = ", ".join(SEEN.get(name, f'"{name}"') for name in one.schema.names)
    with duckdb.connect() as session:
        session.register("one", one)
        session.register("other", other)
        left, right = (f"SELECT {columns} FROM {name}" for name in ("one", "other"))  # noqa: S608
        either = f"({left} EXCEPT ALL {right}) UNION ALL ({right} EXCEPT ALL {left})"
        [(count,)] = session.execute(f"SELECT count(*) FROM ({either})").fetchall()  # noqa: S608
    return bool(count)


def test_tables_have_one_digest_exactly_if_their_rows_are_equal() -> None:
    """In any order and in any batches; nulls, zeros, empty things and NaN are what they are."""
    draw, equal = random.Random(45), 0
    for _ in range(300):
        names = draw.sample(sorted(DRAWN), draw.randint(1, 4))
        schema = pa.schema([pa.field(name, DRAWN[name][0]) for name in names])
        rows = [
            {name: draw.choice(DRAWN[name][1]) for name in names} for _ in range(draw.randint(1, 6))
        ]
        others = draw.sample(rows, len(rows))
        for _ in range(draw.choice([0, 0, 1, 2])):  # some cells, which may come out as they were
            name, row = draw.choice(names), draw.randrange(len(others))
            others[row] = {**others[row], name: draw.choice(DRAWN[name][1])}
        cut = draw.randint(0, len(others))
        one = pa.Table.from_pylist(rows, schema)
        other = pa.concat_tables(
            [pa.Table.from_pylist(part, schema) for part in (others[:cut], others[cut:])]
        )

        assert (digest(one) != digest(other)) == differ(one, other), (rows, others)
        equal += digest(one) == digest(other)

    assert 50 < equal < 250


def test_a_digest_is_the_sum_of_its_parts() -> None:
    """Tasks take digests of their rows apart, whose states are added."""
    rows = pa.record_batch({"n": [1, 2, 2, None]})
    whole, summed = ContentDigest(), ContentDigest()
    whole.add(rows)
    for start in range(4):
        part = ContentDigest()
        part.add(rows.slice(start, 1))
        summed.add_state(part.state)

    assert (summed.text, summed.rows) == (whole.text, 4)
