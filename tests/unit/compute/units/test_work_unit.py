"""A unit is the same after its journey, from whichever columns it was made."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rebaser_server.compute.work_unit import VERSION, CallLimits, WorkUnit
from tests.helpers.work_units import unit_from_rows

COLUMNS = (
    "ids", "signature_indices", "statuses", "texts", "must_compute", "refs",
    "constant_ids", "constant_known", "constant_texts",
)  # fmt: skip


def example() -> WorkUnit:
    unit = unit_from_rows(
        [("builtin", "sum"), (None, "gone")],
        [(0, [("values", 2)]), (1, [("value", None), ("others", 0)])],
        [("é", 0, "ok", 1.0, True, [-1, -2]), ("", 1, "failed", "why", False, [0])],
        [("c", True, {"ä": [None]}), ("d", False, None)],
        CallLimits(1.5, 2**40, is_forked=True),
    )
    return replace(unit, code={0: "rebaser.builtin 1.2 3fa9"})


def plain(unit: WorkUnit) -> dict[str, Any]:
    columns = {name: getattr(unit, name) for name in COLUMNS}
    return {name: column.tolist() for name, column in columns.items()} | {
        "functions": unit.functions,
        "signatures": unit.signatures,
        "limits": unit.limits,
        "code": unit.code,
    }


@pytest.mark.parametrize("unit", [example(), WorkUnit()], ids=["example", "empty"])
def test_a_blob_comes_out_as_it_went_in(unit: WorkUnit) -> None:
    encoded = unit.encode()

    assert plain(WorkUnit.decode(encoded)) == plain(unit)


@pytest.mark.parametrize(
    "made",
    [
        lambda ids: pa.array(["x", "y", *ids])[2:],
        lambda ids: pa.chunked_array([ids[:1], [], ids[1:]], pa.string()),
        lambda ids: pa.array(ids, pa.large_string()),
        lambda ids: pa.array(ids).dictionary_encode(),
        lambda ids: pa.array([None if each == "" else each for each in ids]),
        list,
    ],
    ids=["slice", "chunks", "large", "dictionary", "nulls", "list"],
)
def test_any_strings_will_do(made: Any) -> None:
    unit = example()
    unit.ids = made(["é", ""])
    unit.signature_indices = unit.signature_indices.astype(np.int64)

    assert plain(WorkUnit.decode(unit.encode())) == plain(example())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        bytes([VERSION - 1]) + WorkUnit().encode()[1:],
        WorkUnit().encode()[:-1],
        WorkUnit().encode() + b"12345678",
    ],
    ids=["nothing", "short", "version", "less", "more"],
)
def test_bytes_that_are_no_unit_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        WorkUnit.decode(data)
