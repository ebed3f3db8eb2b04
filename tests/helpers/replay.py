"""What histories make, in this process or, as a program, in another."""

import sys
from collections.abc import Iterable
from pathlib import Path

import cbor2

from rebaser_core.codecs import CBOR, dumps
from rebaser_core.ids import RequestId
from rebaser_core.messages import UpdatesBatch, UpdatesBatchV1
from rebaser_core.updates import AnyUpdate
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import RebaseResult, rebase

History = list[list[AnyUpdate]]


def after(history: History) -> Graph:
    graph = Graph()
    for sequence, batch in enumerate(history, 1):
        rebase(graph, sequence, batch)
    return graph


def encoded(updates: Iterable[AnyUpdate]) -> bytes:
    return UpdatesBatch.encode(UpdatesBatchV1(id=RequestId.from_int(1), updates=list(updates)))[1]


def bytes_of(done: RebaseResult) -> bytes:
    corrections = [correction.model_dump(mode="json") for correction in done.corrections]
    return encoded(done.updates) + dumps(CBOR, [corrections, done.dirty])


def bytes_of_history(history: History) -> bytes:
    """All that its batches come to, one after another."""
    graph = Graph()
    return b"".join(bytes_of(rebase(graph, n, batch)) for n, batch in enumerate(history, 1))


def dump(path: Path, histories: list[History]) -> None:
    path.write_bytes(cbor2.dumps([list(map(encoded, history)) for history in histories]))


if __name__ == "__main__":
    for batches in cbor2.loads(Path(sys.argv[1]).read_bytes()):
        history = [UpdatesBatch.decode_stored(batch).updates for batch in batches]
        sys.stdout.buffer.write(bytes_of_history(history))
