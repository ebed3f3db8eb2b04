"""Part `requests`: from enqueueing to the commit, for one change set and for many."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

from benchmarks.bare import STEPS
from benchmarks.broker import DURABILITY, broker
from benchmarks.comparison import Comparison
from benchmarks.deployment import CLIENT, DAEMON, deployed
from benchmarks.limits import limits
from benchmarks.sizes import Sizes
from benchmarks.tables import Cell, Table


async def run(directory: Path, sizes: Sizes, say: Callable[[str], None]) -> list[Table]:
    """Both durability modes, on one server and on three, each with a daemon of its own."""
    tables: list[Table] = []
    for durability, cluster in product(DURABILITY, (False, True)):
        files = directory / f"{durability} {'cluster' if cluster else 'alone'}"
        with broker(files / "nats", durability, cluster=cluster) as server:
            say(f"requests: synced {server.durability}, servers: {server.servers}")
            async with (
                deployed(files, server, sizes.change_sets, server.url) as deployment,
                limits(deployment) as bounds,
            ):
                tables = tables or _tables(sizes, *bounds.bytes)
                for lanes in (1, sizes.change_sets):
                    say(f"requests: {lanes} change sets")
                    compared = Comparison(deployment, bounds, lanes, sizes)
                    await compared.run(sizes.cluster_rounds if cluster else sizes.rounds)
                    for table, row in zip(tables, _rows(compared), strict=True):
                        table.rows.append([server.durability, server.servers, lanes, *row])
                for lane in deployment.lanes:
                    lane.check()
    return tables


def _rows(found: Comparison) -> list[list[Cell]]:
    p50 = found["rebaser p50"]
    rate, backlog = found["rebaser rate"], found.get("drain rate")
    latency: list[Cell] = [
        *(p50, found["rebaser p99"]),
        *(found["chain p50"], found["chain p99"], p50 / found["chain p50"]),
        *(found["worker p50"], found["worker p99"], p50 / found["worker p50"]),
    ]
    rates: list[Cell] = [
        *(rate, found["publish rate"], rate / found["publish rate"]),
        *(found["worker rate"], rate / found["worker rate"]),
        *(backlog, None if backlog is None else backlog / found["publish rate"]),
    ]
    processors: list[Cell] = [
        found.get(f"{name} cpu")
        for name in ("rebaser client", "daemon", "nats-server", "worker client", "worker")
    ]
    processors.append(found.get("drain cpu"))
    steps: list[Cell] = [found[step] for step in STEPS]
    traffic: list[Cell] = [
        found[f"{name} {way}"] for name in (CLIENT, DAEMON) for way in ("sent", "got")
    ]
    return [latency, steps, rates, processors, traffic]


_LATENCY = """\
From the call of `enqueue_updates` to the line of the commit log, as a follower of the log (our
ordered consumer, in the client's process) gets it. Limits: request, task that is refused,
delivery and commit, one after another, with nats-py in one process; and a process that commits
whatever comes, asked with nats-py and seen by the same follower.
A request has {request} bytes, a commit {commit}, with headers."""
_SERVERS = """\
Three servers share the machine, and all streams have three replicas, those of the limits, too.
All connect to the first server, which leads all streams. Medians of {alone} rounds with one server,
of {cluster} with three."""
_RATE = """\
From the first call to the last line of the log. Limits: as many publishes of the same request,
those of a change set one by one; and the process as above. From a backlog: the daemon was frozen
until all requests were stored; the clock runs from then to the last line of the log."""
_PROCESSORS = """\
The client's includes what follows the log, nats-server's is that of all servers. Another process's
comes in steps of 10 ms in all."""
_STEPS = """\
Several change sets at once wait for each other, since one process makes all of these."""
_TRAFFIC = """\
While the requests of the first table were made; that is, with progress reports and all."""


def _tables(sizes: Sizes, request_bytes: int, commit_bytes: int) -> list[Table]:
    which = ("synced", "servers", "change sets")
    servers = _SERVERS.format(alone=sizes.rounds, cluster=sizes.cluster_rounds)
    return [
        Table(
            "Enqueue to commit, each request after the commit of the one before it (ms)",
            [
                *which,
                *("Rebaser p50", "p99"),
                *("round trips p50", "their p99", "ratio"),
                *("bare worker p50", "its p99", "ratio to it"),
            ],
            notes=[_LATENCY.format(request=request_bytes, commit=commit_bytes), servers],
        ),
        Table(
            "The round trips of the limit (median ms)",
            [*which, *STEPS],
            notes=[_STEPS],
        ),
        Table(
            "Requests a second, enqueued as fast as the client can",
            [
                *which,
                *("Rebaser", "awaited publishes", "ratio"),
                *("bare worker", "ratio to it"),
                *("from a backlog", "its ratio"),
            ],
            notes=[_RATE],
        ),
        Table(
            "Processor time a request while they were flooded (ms)",
            [
                *(*which, "client", "daemon", "nats-server"),
                *("nats-py for a client", "bare worker", "daemon, from a backlog"),
            ],
            notes=[_PROCESSORS],
        ),
        Table(
            "Messages a request, as the server counted them",
            [*which, "client sent", "client got", "daemon sent", "daemon got"],
            notes=[_TRAFFIC],
        ),
    ]
