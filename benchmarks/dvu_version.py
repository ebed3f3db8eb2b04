"""Updates of dependents in one checkout of Rebaser, once for each line on stdin: see `versions.py`.

It is run as a script in the checkout that is measured, and uses what each has had since f0eda4b.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.blocks import FUNC, chain, put_blocks, set_source, value_ids
from benchmarks.broker import broker
from benchmarks.deployment import deployed
from benchmarks.dvu import set_pending
from benchmarks.embedded import Rebaser, Trace
from debian_demo.graph import load_packages
from rebaser_client.client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from rebaser_core.updates import Update
from rebaser_server.compute import plan as planning
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.results import RunStore, UnitResult, decode_result
from rebaser_server.files import SharedFiles
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import apply_result_table, rebase

SLOTS = 2
BLOCKS = 100
WARM_UP = 10
"""Updates of ten values before the first that counts."""
_UPDATES = TypeAdapter(list[Update])


def compute(graph: Graph, sequence: int) -> list[UnitResult]:
    """All results of one update, as this checkout computes them."""
    if not hasattr(planning, "Rounds"):  # older checkouts plan all at once
        return [decode_result(evaluate(unit)) for unit in planning.plan(graph, SLOTS).units]
    store, outcomes = RunStore(SharedFiles(tempfile.gettempdir()), "0" * 64), list[UnitResult]()
    planner = planning.UpdatePlanner(SLOTS, planning.UnitLimits(), CostModel())
    rounds = planner.prepare(graph, sequence, store, is_repeated=False)
    rounds = rounds() if callable(rounds) else rounds
    while rounds.units:
        of_round = [decode_result(evaluate(unit)) for unit in rounds.units]
        rounds.record(of_round, store)
        outcomes += of_round
    return outcomes


class InTurns:
    """A graph in this process, and updates that come one after another, over and over."""

    def __init__(self, graph: Graph, *rounds: Sequence[dict[str, Any]]) -> None:
        self._graph = graph
        self._rounds = list(rounds)
        self._sequence = 1

    def update(self, updates: Sequence[dict[str, Any]]) -> float:
        """Apply a batch; milliseconds of processor time of plan and evaluation."""
        self._sequence += 1
        rebase(self._graph, self._sequence, _UPDATES.validate_python(updates))
        began = time.process_time()
        results = compute(self._graph, self._sequence)
        took = time.process_time() - began
        for result in results:
            apply_result_table(self._graph, result.table, self._sequence)
        self._graph.clear_roots(self._sequence)
        return 1e3 * took

    def both(self) -> float:
        """The mean over all rounds."""
        return sum(map(self.update, self._rounds)) / len(self._rounds)


def debian() -> list[InTurns]:
    """Few of many come out different; most; and all are computed."""
    packages, graph = load_packages(), Graph()
    whole = InTurns(graph)
    whole.update(packages.updates())
    cases = []
    for name in ("libssl3", "libc6"):
        value_id = packages.own_id(name)
        now = bool(graph.values[value_id].value)
        cases.append(InTurns(graph, [set_pending(value_id, not now)], [set_pending(value_id, now)]))
    known = list(zip(packages.own_ids, packages.pending, strict=True))
    others = [set_pending(value_id, not pending) for value_id, pending in known]
    back = [set_pending(value_id, pending) for value_id, pending in known]
    return [*cases, InTurns(graph, others, back)]


def cut_off(count: int) -> InTurns:
    """A chain whose fifth value is the same for every source."""
    graph, ids = chain(count), value_ids(0, 6, count)
    counting = {"funcId": FUNC[:-1] + "D", "name": "count", "runtime": "builtin", "code": "count"}
    fifth = {"valueId": ids[5], "funcId": counting["funcId"], "inputs": {"values": [ids[4]]}}
    case = InTurns(graph, *([{"setValue": {"valueId": ids[0], "value": n}}] for n in (7, 8)))
    source = {"setValue": {"valueId": ids[0], "value": 5}}
    case.update([{"putFunc": counting}, {"putValue": fifth}, source])
    return case


async def main(longest: int) -> None:
    cases = [*debian(), cut_off(longest)]
    with (
        tempfile.TemporaryDirectory() as name,
        broker(Path(name) / "nats", "sync always") as server,
    ):
        async with (
            deployed(Path(name), server, 1, server.url),
            connected(ConnectOptions(servers=(server.url,))) as nc,
            RebaserClient.on(nc, JetStream(nc)) as client,
        ):
            ten = Rebaser(nc, client, None, Trace(), SLOTS)
            async with ten.traced():
                await serve(cases, ten, client)


async def serve(cases: list[InTurns], ten: Rebaser, client: RebaserClient) -> None:
    alone = {"putValue": {"valueId": FUNC[:-1] + "E", "value": 0}}
    await ten.update([*put_blocks(0, BLOCKS, BLOCKS), alone])
    number = 0

    async def until_computed() -> float:
        nonlocal number
        number += 1
        began = time.perf_counter()
        await ten.update([set_source(number % BLOCKS, BLOCKS, 1_000_000 + number)])
        return 1e3 * (time.perf_counter() - began)

    async def until_committed() -> float:
        update = {"setValue": {"valueId": alone["putValue"]["valueId"], "value": number}}
        began = time.perf_counter()
        _, reply = await client.enqueue_updates_with_reply(*ten.change_set, [update])
        await reply
        return 1e3 * (time.perf_counter() - began)

    for _ in range(WARM_UP):
        await until_computed()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(
            *[case.both() for case in cases],
            await until_computed(),
            await until_committed(),
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
