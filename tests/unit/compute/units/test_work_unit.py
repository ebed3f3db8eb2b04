"""A blob is the same after its journey, from whichever columns it was made."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rebaser_server.compute.units.work_unit import VERSION, Blob, Limits, size

COLUMNS = (
    "ids", "calls", "statuses", "texts", "forced", "refs",
    "constant_ids", "constant_known", "constant_texts",
)  # fmt: skip


def example() -> Blob:
    return Blob.of(
        [("builtin", "sum"), (None, "gone")],
        [(0, [("values", 2)]), (1, [("value", None), ("others", 0)])],
        [("é", 0, "ok", 1.0, True, [-1, -2]), ("", 1, "failed", "why", False, [0])],
        [("c", True, {"ä": [None]}), ("d", False, None)],
        Limits(1.5, 2**40, is_guarded=True),
    )


def plain(blob: Blob) -> dict[str, Any]:
    columns = {name: getattr(blob, name) for name in COLUMNS}
    return {name: column.tolist() for name, column in columns.items()} | {
        "functions": blob.functions,
        "signatures": blob.signatures,
        "limits": blob.limits,
    }


@pytest.mark.parametrize("blob", [example(), Blob()], ids=["example", "empty"])
def test_a_blob_comes_out_as_it_went_in(blob: Blob) -> None:
    encoded = blob.encode()

    assert plain(Blob.decode(encoded)) == plain(blob)
    assert size(encoded) == len(blob)


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
    blob = example()
    blob.ids = made(["é", ""])
    blob.calls = blob.calls.astype(np.int64)

    assert plain(Blob.decode(blob.encode())) == plain(example())


@pytest.mark.parametrize(
    "data",
    [b"", b"\1", bytes([VERSION + 1]) * 40, Blob().encode()[:-1], Blob().encode() + b"12345678"],
    ids=["nothing", "short", "version", "less", "more"],
)
def test_what_is_no_blob_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not"):
        Blob.decode(data)
