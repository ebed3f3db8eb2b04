"""A digest of rows follows their content, and nothing else of how they lie."""

import random
from typing import Any

import pyarrow as pa
import pytest

from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.row_digest import (
    DIGESTED,
    INPUTS,
    NO_ROWS,
    Head,
    RowDigest,
    SealedDigest,
    digest_of,
    seal,
    unseal,
)
from rebaser_server.store.table_schema import SCHEMA, SealedRows

TEXTS = ["", "a", "\0", "ä", "12345678", "123456789", "x" * 26, "{}", "null"]
OTHERS: dict[str, list[Any]] = {
    "commit": [0, 1, 2**63 - 1],
    "removed": [False, True],
    "root": [None, 0, 1],
    "input_hashes": [None, b"", b"12345678", bytes(16)],
}


def random_rows(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    cells = {
        field.name: OTHERS.get(field.name) or [*TEXTS, *([None] if field.nullable else [])]
        for field in SCHEMA
    }
    rows = [{name: chance.choice(some) for name, some in cells.items()} for _ in range(count)]
    return [row | {"kind": chance.choice(["value", "func"])} for row in rows]


def batch_of(some: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(some, SCHEMA)


def total(*batches: pa.RecordBatch) -> RowDigest:
    digest = NO_ROWS
    for batch in batches:
        digest = digest.plus(digest_of(batch))
    return digest


@pytest.mark.parametrize("split", range(13))
def test_order_and_layout_do_not_count(split: int) -> None:
    """Nor whether a column is a dictionary, or of large strings, or has a part of others before."""
    some = random_rows(split, 12)
    expected = digest_of(batch_of(some))
    random.Random(split).shuffle(some)

    parts = total(batch_of(some[:split]), batch_of(some).slice(split))

    as_dictionaries = batch_of(some)
    for name in ("kind", "func_id", "status", "arguments"):
        place = as_dictionaries.schema.get_field_index(name)
        column = as_dictionaries[name].dictionary_encode()
        as_dictionaries = as_dictionaries.set_column(place, name, column)
    for name in ("id", "value"):
        place = as_dictionaries.schema.get_field_index(name)
        large = as_dictionaries[name].cast(pa.large_string())
        as_dictionaries = as_dictionaries.set_column(place, name, large)
    assert parts == digest_of(as_dictionaries) == expected


@pytest.mark.parametrize("name", SCHEMA.names)
def test_every_cell_counts(name: str) -> None:
    for seed in range(20):
        one, other = random_rows(seed, 2)
        changed = one | {name: other[name]}
        before, after = digest_of(batch_of([one])), digest_of(batch_of([changed]))

        assert (before == after) == (one == changed)
        assert (before.rows == after.rows) == (one == changed or name == INPUTS)


def test_rows_can_be_taken_away_and_count_as_often_as_they_are() -> None:
    *some, more = random_rows(1, 9)
    few, added = digest_of(batch_of(some)), digest_of(batch_of([more]))

    assert digest_of(batch_of([*some, more])).minus(added) == few
    assert digest_of(batch_of([*some, more, more])) not in (few, few.plus(added))


def test_cells_that_change_places_count() -> None:
    one, other = ({"kind": "value", "id": "a", "commit": 1, "removed": False} for _ in range(2))
    one |= {"id": "a", "value": "1"}
    other |= {"id": "b", "value": "2"}
    swapped = [one | {"value": "2"}, other | {"value": "1"}]
    moved = [one | {"value": None, "name": "1"}, other]

    digests = {digest_of(batch_of(each)) for each in ([one, other], swapped, moved)}

    assert len(digests) == 3


def test_columns_that_were_added_later_count_only_where_they_say_something() -> None:
    """So a table that another release made wider has the digest that it had."""
    batch = batch_of([{"kind": "value", "id": "a", "commit": 1, "removed": False}])
    narrow = batch.select(["kind", "id", "commit", "removed", "inputs"])
    wide = batch.append_column("shard", pa.array([7]))

    assert digest_of(batch) == digest_of(narrow) == digest_of(wide)
    assert set(DIGESTED) | {INPUTS} == set(SCHEMA.names)


def test_texts_of_any_length_count_to_the_last_octet() -> None:
    for length in (1, 7, 8, 9, 26, 4_095, 4_096, 70_000):
        texts = ["x" * length, "x" * (length - 1) + "y", "x" * (length - 1)]
        blank = {"kind": "value", "id": "", "commit": 1, "removed": False}

        digests = {digest_of(batch_of([blank | {"value": text}])) for text in texts}

        assert len(digests) == len(texts)


def test_the_digest_is_what_it_was() -> None:
    """It is stored in tables."""
    row = {"kind": "value", "id": "01J", "commit": 7, "removed": False, "name": "n", "root": 3}
    row |= {"value": '[1,"ä"]', "func_id": "f", "inputs": '{"a":"b"}', "status": "ok"}
    row |= {"message": "m" * 5_000, "arguments": '[["a",null]]', "input_hashes": b"12345678"}

    assert digest_of(batch_of([row])) == RowDigest(0xE498C914041D9A29, 0x456E5FB77E1805F4)


METADATA = b'{"n":1,"more":{"digest":{"rows":"1"}}}'


@pytest.mark.parametrize("metadata", [b"{}", METADATA])
def test_a_sealed_head_says_what_was_sealed(metadata: bytes) -> None:
    digest = RowDigest(2**64 - 1, 5)

    assert unseal(3, seal(metadata, digest).decode()) == Head(3, metadata, digest)


def test_no_octet_of_a_sealed_head_can_be_changed() -> None:
    text = seal(METADATA, RowDigest(1, 2))
    for place in range(len(text)):
        for changed in (text[place] ^ 1, ord("7"), ord(" ")):
            damaged = text[:place] + bytes([changed]) + text[place + 1 :]
            if damaged != text:
                with pytest.raises(StoreDamaged):
                    unseal(1, damaged.decode())


def test_a_head_without_a_digest_is_not_taken_for_one() -> None:
    with pytest.raises(StoreDamaged, match="no digest"):
        unseal(1, '{"n":1}')


def test_the_head_of_a_checkpoint_has_the_digest_of_its_rows() -> None:
    before = RowDigest(3, 4)
    sealed = SealedRows([batch_of(random_rows(1, 9))], METADATA, 5, before)

    table = sealed.reader().read_all().combine_chunks().to_batches()[0]

    digests = SealedDigest()
    digests.add(table)
    digest, [head] = digests.result()
    assert (head.commit, head.metadata) == (5, METADATA)
    assert head.digest == sealed.digest == digest.plus(before)


def test_digests_fit_where_rows_and_inputs_do() -> None:
    """Inputs that were not read fit any."""
    digest = RowDigest(1, 2)

    assert all(map(digest.fits, [RowDigest(1, 2), RowDigest(1, None)]))
    assert not any(map(digest.fits, [RowDigest(2, 2), RowDigest(2, None), RowDigest(1, 3)]))
