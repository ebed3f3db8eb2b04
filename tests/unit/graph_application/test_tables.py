"""Keys of tables are found in batches and results of each form."""

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from rebaser_client.tables import read_updates
from rebaser_core import codecs
from rebaser_core.ids import RequestId
from rebaser_core.messages import UpdatesBatch, UpdatesBatchV1
from rebaser_core.table_updates import TableUpdates
from rebaser_core.table_values import TableHandle, upload_value
from rebaser_core.updates import PutValue
from rebaser_server.compute.results import SCHEMA, RunStore, UnitResult
from rebaser_server.files import OrphanFiles, SharedFiles
from rebaser_server.graph_application.tables import TableHoldings
from rebaser_server.values.canonical_json import dumps
from tests.helpers.batches import new_id

DIGEST, KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4
HANDLE = TableHandle(KEY, "a" * 32, "b" * 32, 1, 2)


@pytest.mark.parametrize("content_type", [codecs.JSON, codecs.CBOR])
@pytest.mark.parametrize("value", [upload_value(DIGEST), {"nested": [upload_value(DIGEST)]}])
def test_a_batch_of_objects_is_searched(content_type: str, value: object) -> None:
    """In both encodings, at any depth of a value."""
    puts = [PutValue(value_id=new_id(), value=each) for each in (1, value, "text")]
    batch = UpdatesBatchV1(id=RequestId(), updates=puts)

    _, payload = UpdatesBatch.encode(batch, content_type)

    assert DIGEST in TableHoldings.keys_in(payload)


@pytest.mark.parametrize("content_type", [codecs.JSON, codecs.CBOR])
@pytest.mark.parametrize("length", [*range(12), *range(120, 132)])
def test_a_batch_with_a_table_is_searched(content_type: str, length: int) -> None:
    """Its rows are in base64, in which a value may begin at any of three places."""
    texts = ["x" * length, upload_value(DIGEST)]
    rows = pa.table({"id": [new_id(), new_id()], "json": list(map(dumps, texts))})
    updates, table = TableUpdates.decode(*read_updates(rows, []).split()).split()
    batch = UpdatesBatchV1(id=RequestId(), updates=list(updates), table=table)

    _, payload = UpdatesBatch.encode(batch, content_type)

    assert DIGEST.encode() not in payload
    assert DIGEST in TableHoldings.keys_in(payload)


def test_a_payload_without_tables_is_not_decoded() -> None:
    """However many digests it has."""
    assert TableHoldings.keys_in(b'{"value": "%s"}' % DIGEST.encode()) == set()


def test_results_that_lie_in_files_are_searched(tmp_path: Path) -> None:
    """Those of an update that has not committed yet, too."""
    files = SharedFiles(str(tmp_path))
    texts = ["1", dumps(HANDLE.to_value())]
    columns = [[new_id(), new_id()], [0, 0], texts, [0, 1]]
    result = UnitResult(2, pa.table(columns, schema=SCHEMA))
    RunStore(files, "c" * 64).put_part("d" * 64, 0, 2, result)

    found = set().union(*map(TableHoldings.keys_in, OrphanFiles(files).payloads()))

    assert KEY in found


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_can_be_searched(seed: int) -> None:
    """Clients may have written them."""
    draw = partial(random.Random(seed).choices, k=300)
    for alphabet in (range(256), b"ABCabc+/=", b'"$table{}:'):
        TableHoldings.keys_in(bytes(draw(alphabet)) + b"$table" + bytes(draw(alphabet)))
