"""Part `graph`: what change sets of all sizes cost to keep, to load, to plan and to checkpoint."""

import asyncio
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.blocks import BLOCK, blocks
from benchmarks.processes import memory
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, Cell, Table, median
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.updates import SetValue
from rebaser_server.compute.plan import plan
from rebaser_server.store.checkpoints import Checkpoints, scan, take_changes
from rebaser_server.store.table_schema import LOADED, graph_from_batches
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase

CHANGE_SET = ChangeSet(WorkspaceId.from_int(1), ChangeSetId.from_int(2))


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """A graph of each size; nothing else runs in this process."""
    return await asyncio.to_thread(_measured, directory, sizes, say)


def _measured(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    kept: list[list[Cell]] = []
    planned: list[list[Cell]] = []
    for count in sizes.graphs:
        say(f"graph: {count:,} values")
        checkpoints = Checkpoints(str(directory / str(count)))
        changes = take_changes(blocks(count), 1, {}, whole=True)
        began = time.perf_counter()
        checkpoints.save(CHANGE_SET, changes)
        saved = time.perf_counter() - began
        del changes
        graph, figures = _loaded(checkpoints, count)
        kept.append([count, *figures, saved / count * 1e6])
        planned.append([count, *_planned(graph, sizes.rounds)])
        del graph
    return [
        Table(
            "A change set at rest, and loaded",
            [
                "values", "bytes each in memory", "at the most while loaded",
                "read Delta (s a million)", "make the graph (s a million)",
                "save it whole (s a million)",
            ],
            kept,
            [_KEPT],
        ),
        Table(
            "Edits and plans in it (median ms of processor time)",
            [
                "values", "set one", "rows to checkpoint", "plan 10 affected",
                "affected of many", "plan these", "ns each",
            ],
            planned,
            [_PLANNED],
        ),
    ]  # fmt: skip


_KEPT = """\
Blocks of eleven: a source, and ten values that take two of their block each. Delta, on the local
file system, in wall time; the graph in processor time. Memory is what the process grew by; at the
most: rows and graph together."""
_PLANNED = """\
Processor time. One source is set, the rows of what that touched are made, and its ten dependents
are planned. Many are a tenth of all sources at once, at most 100,000, planned for two slots, with
blobs encoded."""


def _loaded(checkpoints: Checkpoints, count: int) -> tuple[Graph, list[Cell]]:
    gc.collect()
    pa.default_memory_pool().release_unused()
    before = memory(os.getpid())
    began = time.perf_counter()
    rows = scan(checkpoints.table(CHANGE_SET), LOADED)
    read = time.perf_counter() - began
    began = time.process_time()
    graph = graph_from_batches(rows.values, rows.others)
    made = time.process_time() - began
    most = memory(os.getpid()) - before
    del rows
    gc.collect()
    pa.default_memory_pool().release_unused()
    size = memory(os.getpid()) - before
    million = count / 1e6
    return graph, [size / count, most / count, read / million, made / million]


def _planned(graph: Graph, rounds: int) -> list[Cell]:
    sources = np.flatnonzero(graph.columns.func.all < 0)  # Delta gives rows in any order
    times: list[tuple[float, float, float]] = []
    for number in range(rounds + 2):
        source = graph.id_at(int(sources[number * 7919 % (len(sources) - 1)]))
        began = time.process_time()
        rebase(graph, number + 2, [SetValue(value_id=source, value=f"new {number}")])
        edited = time.process_time()
        take_changes(graph, number + 2, {}, whole=False)
        stored = time.process_time()
        planned = plan(graph, 2)
        done = time.process_time()
        if planned.affected != BLOCK - 1:
            raise RuntimeError(f"{planned.affected} affected")
        times.append((edited - began, stored - edited, done - stored))
        graph.clear_roots(number + 2)
    edit, store, small = (median(step) * MILLI for step in zip(*times[2:], strict=True))
    many: list[float] = []
    for number in range(rounds):
        graph.roots.mark_all(sources[:: max(1, len(sources) // 100_000)], 10_000 + number)
        began = time.process_time()
        affected = plan(graph, 2).affected
        many.append(time.process_time() - began)
        graph.clear_roots(10_000 + number)
    return [edit, store, small, affected, median(many) * MILLI, median(many) / affected * 1e9]
