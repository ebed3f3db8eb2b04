"""Rebaser and its limits on the request path, measured in turns."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Sequence

from benchmarks import cpu
from benchmarks.bare import STEPS, publish_each
from benchmarks.broker import Traffic
from benchmarks.deployment import CLIENT, DAEMON, Deployment
from benchmarks.lanes import Lane, drain, flood, one_by_one
from benchmarks.limits import Limits
from benchmarks.sizes import Sizes
from benchmarks.tables import MILLI, median, percentile

_SETTLED = 0.2
"""Seconds after the last commit until what follows from it was sent, too."""


class Comparison:
    """With so many change sets at once: figures by name, one for each round."""

    def __init__(self, deployment: Deployment, bounds: Limits, lanes: int, sizes: Sizes) -> None:
        self._broker = deployment.broker
        self._daemon = deployment.daemon_pid
        self._lanes = deployment.lanes[:lanes]
        self._chains = bounds.chains[:lanes]
        self._workers = bounds.workers[:lanes]
        self._worker = bounds.worker_pid
        self._publishers = bounds.publishers[:lanes]
        self._tidy = bounds.tidy
        self._latency_each = sizes.one_by_one // lanes
        self._flood_each = sizes.flood // lanes
        self._figures: dict[str, list[float]] = defaultdict(list)

    async def run(self, rounds: int) -> None:
        steps = [
            self._latency,
            self._chain_latency,
            self._worker_latency,
            self._rate,
            self._publish_rate,
            self._worker_rate,
        ]
        if len(self._lanes) == 1:
            steps.append(self._drain_rate)
        for _ in range(rounds):
            for step in steps:
                await step()
            steps.reverse()  # nobody always comes after the same
            await self._tidy()

    def __getitem__(self, name: str) -> float:
        """The median over the rounds."""
        return median(self._figures[name])

    def get(self, name: str) -> float | None:
        return self[name] if self._figures[name] else None

    async def _latency(self) -> None:
        before = await self._traffic()
        self._note("rebaser", await one_by_one(self._lanes, self._latency_each))
        requests = len(self._lanes) * self._latency_each
        for (name, old), new in zip(before.items(), (await self._traffic()).values(), strict=True):
            self._figures[f"{name} sent"].append((new.to_server - old.to_server) / requests)
            self._figures[f"{name} got"].append((new.from_server - old.from_server) / requests)

    async def _traffic(self) -> dict[str, Traffic]:
        await asyncio.sleep(_SETTLED)
        return {name: self._broker.traffic(name) for name in (CLIENT, DAEMON)}

    async def _chain_latency(self) -> None:
        each = self._latency_each
        took = await asyncio.gather(*(chain.repeat(each) for chain in self._chains))
        self._note("chain", list(itertools.chain(*took)))
        steps = [step for chain in self._chains for step in chain.steps[-each:]]
        for name, seconds in zip(STEPS, zip(*steps, strict=True), strict=True):
            self._figures[name].append(median(seconds) * MILLI)

    async def _worker_latency(self) -> None:
        self._note("worker", await one_by_one(self._workers, self._latency_each))

    def _note(self, who: str, seconds: list[float]) -> None:
        self._figures[f"{who} p50"].append(percentile(seconds, 50) * MILLI)
        self._figures[f"{who} p99"].append(percentile(seconds, 99) * MILLI)

    async def _rate(self) -> None:
        pids = {"daemon": [self._daemon], "nats-server": self._broker.pids}
        await self._flood("rebaser", self._lanes, pids)

    async def _drain_rate(self) -> None:
        before = cpu.seconds(self._daemon)
        self._figures["drain rate"].append(
            await drain(self._lanes[0], self._flood_each, self._daemon)
        )
        if before is not None:
            more = (cpu.seconds(self._daemon) or before) - before
            self._figures["drain cpu"].append(more / self._flood_each * MILLI)

    async def _publish_rate(self) -> None:
        self._figures["publish rate"].append(await publish_each(self._publishers, self._flood_each))

    async def _worker_rate(self) -> None:
        await self._flood("worker", self._workers, {"worker": [self._worker]})

    async def _flood(self, who: str, lanes: Sequence[Lane], pids: dict[str, list[int]]) -> None:
        before = {name: _seconds(of) for name, of in pids.items()}
        own = time.process_time()
        self._figures[f"{who} rate"].append(await flood(lanes, self._flood_each))
        requests = len(lanes) * self._flood_each
        self._figures[f"{who} client cpu"].append((time.process_time() - own) / requests * MILLI)
        for name, used in before.items():
            if used is not None:
                more = (_seconds(pids[name]) or used) - used
                self._figures[f"{name} cpu"].append(more / requests * MILLI)


def _seconds(pids: Sequence[int]) -> float | None:
    """Processor time of all of them; None if that of one is not to be seen."""
    each = [cpu.seconds(pid) for pid in pids]
    return None if None in each else sum(filter(None, each))
