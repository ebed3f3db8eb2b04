"""Part `dvu`: from setting one value until everything that depends on it is recomputed."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import debian
from benchmarks.broker import broker
from benchmarks.debian import InProcess
from benchmarks.dvu_case import Case, set_pending
from benchmarks.dvu_sizes import sizes_of
from benchmarks.embedded import Rebaser, running
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table
from benchmarks.trace import PHASES
from debian_demo.graph import Packages, load_packages

AS_IT_IS, ALONE = "others pending", "no other pending"
"""With other fixes pending most values come out unchanged, and what depends on them is left."""


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """One change set that holds the graph, in two states of it."""
    say("dvu: read the packages")
    packages = load_packages()
    dependents = debian.Dependents(packages)
    names = [dependents.nearest(count) for count in sizes.affected]
    if not sizes.whole_graph:
        packages = dependents.above(names)
    once, cases = _once(), []
    by_size = await sizes_of(directory / "sizes", sizes, say)
    with broker(directory / "nats") as nats:
        async with running(directory, nats.url) as rebaser:
            beside = debian.InProcess(rebaser.slots)
            say("dvu: load the graph")
            once.rows.append(["all, Spark cold", *await _both(rebaser, beside, packages.updates())])
            for state in (AS_IT_IS, ALONE):
                if state == ALONE:
                    say("dvu: mark all packages as fixed")
                    fixed = _all_fixed(packages)
                    once.rows.append(["fix all packages", *await _both(rebaser, beside, fixed)])
                for name in names:
                    say(f"dvu: {name}, {state}")
                    is_pending = state == AS_IT_IS
                    cases.append(Case(state, name, packages.own_id(name), is_pending))
                    await cases[-1].measure(rebaser, beside, sizes.dvu_rounds)
        return [by_size, *_tables(cases, nats.durability, len(packages.names)), once]


def _all_fixed(packages: Packages) -> list[dict[str, Any]]:
    known = zip(packages.own_ids, packages.pending, strict=True)
    return [set_pending(value_id, False) for value_id, is_pending in known if is_pending]  # noqa: FBT003


async def _both(
    rebaser: Rebaser, beside: InProcess, updates: Sequence[dict[str, Any]]
) -> list[Cell]:
    """Apply a batch here and there; counts, seconds in all, of each phase, and in process."""
    counts = await rebaser.update(updates)
    local = await asyncio.to_thread(beside.apply, updates)
    if local.counts != counts:
        raise RuntimeError(f"Rebaser {counts}, in process {local.counts}")
    here = local.plan_seconds + local.evaluate_seconds
    return [len(updates), *counts, rebaser.trace.seconds, *rebaser.trace.phases(), here]


_WHOLE = """\
The Debian graph with {packages:,} packages, synced {durability}, medians. From the call of
`enqueue_updates` to the activity that tells the end. Limits: the same plan and evaluation in
this process; a `mapInArrow` job of one row in the same Spark session; both together. Rebaser
runs in this process, too."""
_WHERE = """\
Between what is seen on the streams: the request's commit, the claim's, the job's start and end,
the result's commit, the end as told."""


def _tables(cases: Sequence[Case], durability: str, packages: int) -> list[Table]:
    return [
        Table(
            "A value is set: until all that depends on it is recomputed and committed (ms)",
            [
                *("set", "graph", "affected", "recomputed", "changed"),
                *("Rebaser p50", "fastest", "slowest"),
                *("in process", "ratio", "empty job", "ratio to it", "ratio to both"),
            ],
            [case.row() for case in cases],
            [_WHOLE.format(packages=packages, durability=durability)],
        ),
        Table(
            "Where the time goes (median ms)",
            ["set", "graph", *PHASES, "plan in process", "evaluation in process"],
            [case.phases_row() for case in cases],
            [_WHERE],
        ),
    ]


def _once() -> Table:
    return Table(
        "Large batches, once each (s)",
        [
            *("batch", "updates", "affected", "recomputed", "changed", "Rebaser"),
            *(*PHASES, "in process"),
        ],
    )
