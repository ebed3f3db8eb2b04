"""Change sets of any size made at once: blocks of a source and ten values that depend on it."""

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import JetStream
from rebaser_server.commit_log.state import Retention
from rebaser_server.graph_application.content import GraphContent
from rebaser_server.graph_application.state_machine import open_state_loader
from rebaser_server.processor.ownership import acquire_ownership
from rebaser_server.settings.settings import Settings
from rebaser_server.values.columns import Columns, Func, Signatures
from rebaser_server.values.graph import Graph, StoredGraph
from tests.helpers.scripted_owner import Owner


async def seed(js: JetStream, settings: Settings, change_set: ChangeSet, graph: Graph) -> None:
    """Save `graph` as the first state of a new change set."""
    own = await acquire_ownership(open_state_loader(js, settings, change_set), "benchmark")
    own.state.content = GraphContent(graph)
    await Owner(own, Retention.of(settings.history)).checkpoint()
    await own.release()


BLOCK: Final = 11
"""Values that belong together: a source, and ten that depend on it."""

_DIGITS: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
FUNC: Final = "0000000000000000000000FVNC"
PUT_FUNC: Final[dict[str, Any]] = {
    "putFunc": {"funcId": FUNC, "name": "sum", "runtime": "builtin", "code": "sum"}
}
"""The update that defines what computes the ten."""


def blocks(count: int, in_all: int = 0) -> Graph:
    """As `count` values came in by requests; the sources are every eleventh, from 0 on.

    Each of the ten takes the one before it and one more of its block. Of `in_all` values,
    if there are to be more, it has the ids of the first.
    """
    index = np.arange(count)
    place = index % BLOCK
    is_source = place == 0
    shapes = Signatures()
    both = shapes.index_for({"values": ["", ""]})
    dependents = index[~is_source]
    above = np.random.default_rng(1).integers(0, place[dependents])
    refs = np.stack([dependents - 1, dependents - place[dependents] + above], 1)
    signature = np.where(is_source, 0, both)
    return _graph(shapes, is_source, signature, refs, index * 7 % 100_003, in_all)


def fan(count: int) -> Graph:
    """A source, values that each take it, and a last one that takes all of these."""
    index = np.arange(count)
    shapes = Signatures()
    signature = np.full(count, shapes.index_for({"values": [""]}))
    signature[0] = 0
    signature[-1] = shapes.index_for({"values": [""] * (count - 2)})
    refs = np.concatenate([np.zeros(count - 2), index[1:-1]])
    return _graph(shapes, index == 0, signature, refs, index)


def _graph(
    shapes: Signatures,
    is_source: np.ndarray[Any, Any],
    signature: np.ndarray[Any, Any],
    refs: np.ndarray[Any, Any],
    texts: np.ndarray[Any, Any],
    in_all: int = 0,
) -> Graph:
    """Sums with these inputs; `texts` are the values of all, computed or not."""
    count = len(is_source)
    columns = Columns(
        count,
        ids=_ids(in_all or count)[:count].copy(),
        flags=np.zeros(count, np.uint8),
        func=np.where(is_source, -1, 0).astype(np.int32),
        text=np.arange(count, dtype=np.int32),
        signature=signature.astype(np.int32),
    )
    stored = StoredGraph(
        columns, shapes, refs.astype(np.int32).reshape(-1),
        func_ids=[FUNC], funcs=[Func(FUNC, "sum", "builtin", "sum")],
        texts=pa.array(texts).cast(pa.large_string()),
    )  # fmt: skip
    return Graph(stored)


@lru_cache(2)
def _ids(count: int) -> np.ndarray[Any, Any]:
    """ULIDs of one moment, in random order."""
    numbers = np.random.default_rng(2).permutation(count)
    text = np.full((count, 26), ord("0"), np.uint8)
    for digit in range(8):
        text[:, 25 - digit] = _DIGITS[numbers >> 5 * digit & 31]
    return text.reshape(-1).view("S26")


def put_blocks(start: int, stop: int, in_all: int) -> list[dict[str, Any]]:
    """The same as updates, with names: blocks from `start` up to `stop`, the first with `sum`."""
    ids = value_ids(start * BLOCK, stop * BLOCK, in_all * BLOCK)
    above = np.random.default_rng(start).integers(0, np.arange(len(ids)) % BLOCK + 1).tolist()
    updates: list[dict[str, Any]] = []
    if start == 0:
        updates.append(PUT_FUNC)
    for place, value_id in enumerate(ids):
        number = start * BLOCK + place
        value: dict[str, Any] = {"valueId": value_id, "name": f"block {number // BLOCK}/{number}"}
        if place % BLOCK:
            first = place - place % BLOCK
            taken = [ids[place - 1], ids[first + above[place - 1]]]
            value |= {"funcId": FUNC, "inputs": {"values": taken}}
        else:
            value["value"] = number * 7 % 100_003
        updates.append({"putValue": value})
    return updates


def table_of_blocks(start: int, stop: int, in_all: int) -> pa.Table:
    """The same blocks as a table for `enqueue_table`, without the function, which is `PUT_FUNC`."""
    count = (stop - start) * BLOCK
    ids = pa.array(_ids(in_all * BLOCK)[start * BLOCK : stop * BLOCK].astype(str))
    rows = np.arange(count)
    place = rows % BLOCK
    is_source = place == 0
    above = np.random.default_rng(start).integers(0, np.maximum(place, 1))
    taken = np.stack([rows - 1, rows - place + above], 1)[~is_source].reshape(-1)
    bounds = pa.array(np.concatenate([[0], np.cumsum(np.where(is_source, 0, 2))]), pa.int32())
    lists = pa.ListArray.from_arrays(bounds, ids.take(pa.array(taken)))
    numbers = rows + start * BLOCK
    values = pa.array(numbers * 7 % 100_003, mask=~is_source)
    blocks_text = pa.array(numbers // BLOCK).cast(pa.string())
    names = pc.binary_join_element_wise("block ", blocks_text, "")
    columns = {
        "id": ids,
        "name": pc.binary_join_element_wise(names, pa.array(numbers).cast(pa.string()), "/"),
        "value": values,
        "function": pa.array(np.where(is_source, None, FUNC), pa.string()),
        "inputs": pa.StructArray.from_arrays([lists], ["values"], mask=pa.array(is_source)),
    }
    return pa.table(columns)


def set_source(block: int, in_all: int, value: int) -> dict[str, Any]:
    """The update that sets the source of a block."""
    [value_id] = value_ids(block * BLOCK, block * BLOCK + 1, in_all * BLOCK)
    return {"setValue": {"valueId": value_id, "value": value}}


def value_ids(start: int, stop: int, in_all: int) -> list[str]:
    """ULIDs of one moment, in random order."""
    return [str(raw, "ascii") for raw in _ids(in_all)[start:stop].tolist()]
