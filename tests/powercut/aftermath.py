"""What comes after a power cut: all starts on the volumes that it left, and comes to rest."""

import asyncio
import json
import os
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream, JetStreamError, StreamNotFound, connected
from rebaser_core.streams import Streams
from rebaser_core.subjects import Subjects
from rebaser_server.settings.settings import Settings
from tests.chaos.access import WITNESS
from tests.chaos.clients import ChaosClient
from tests.chaos.history import Event, History, Kind
from tests.chaos.processes import errors_in
from tests.chaos.quiescence import Resting
from tests.chaos.recorder import recording
from tests.chaos.round import chaos_client, write_down_values
from tests.helpers.deployment import Daemon, Deployment
from tests.helpers.eventually import eventually
from tests.helpers.fork_server import rebaser
from tests.powercut.life import Cut, Life, daemon_variables
from tests.powercut.machines import Machines, copied_volumes, powered

ANSWERS_WITHIN: Final = 40.0
"""Seconds in which a cluster has leaders."""

_GONE_FOR: Final = 3.0
"""Seconds after which a stream that a cluster does not know is taken for lost."""

_LOOK: Final = 0.1  # seconds between two questions

_SHOWN: Final = 300  # characters of what a daemon said last

_ASKED_AGAIN: Final = 10
"""Outcomes that clients ask for, of the last requests that they know to be stored."""


@dataclass
class Aftermath:
    """What was seen."""

    last: dict[str, int | None] = field(default_factory=dict)
    """By stream, its last sequence before any daemon ran; None if the stream was not there."""
    history: History = field(default_factory=History)
    said: Counter[str] = field(default_factory=Counter)
    """Warnings and errors in the daemon's log, by event."""
    findings: Counter[str] = field(default_factory=Counter)
    """Of `rebaser doctor` once all was at rest, by check."""
    refused: str = ""
    """What the daemon said that did not start."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Change sets whose checkpoint and log make no state, and why."""


async def restart(life: Life, cut: Cut, directory: Path) -> Aftermath:
    """Start all on copies of the cut's volumes, and wait until nothing moves."""
    seen, mounts, conditions = Aftermath(), directory / "mounts", life.conditions
    async with AsyncExitStack() as stack:
        images = stack.enter_context(TemporaryDirectory(dir=directory))
        volumes = stack.enter_context(
            copied_volumes(cut.images, Path(images), mounts, conditions.servers)
        )
        for ports in mounts.rglob("nats-server_*.ports"):
            ports.unlink()  # of a server that had another process id
        machines = await stack.enter_async_context(
            powered(volumes, mounts, servers=conditions.servers, sync=conditions.sync)
        )
        await _Restarted(life, cut, directory, machines, seen).run(stack)
    return seen


@dataclass
class _Restarted:
    life: Life
    cut: Cut
    directory: Path
    machines: Machines
    seen: Aftermath

    async def run(self, stack: AsyncExitStack) -> None:
        conditions, history = self.life.conditions, self.seen.history
        size, urls = conditions.size, self.machines.urls
        nc = await stack.enter_async_context(connected(size.access.options(WITNESS, urls)))
        streams = Streams(js=JetStream(nc))
        self.seen.last = await _last_sequences(streams)
        whole = None not in self.seen.last.values()
        if whole:  # the recorder before a daemon, which may purge
            recorder = await stack.enter_async_context(recording(nc, streams, history))
        daemon = self._daemon(stack)
        if not await _starts(daemon):
            self.seen.refused = daemon.said_in_all()[-_SHOWN:]
            await self._ask_the_doctor()
            return
        if not whole:
            recorder = await stack.enter_async_context(recording(nc, streams, history))
        client = await stack.enter_async_context(
            chaos_client(conditions.seed, size.clients, urls, history, {}, size)
        )
        client.js.calm = True
        deployment = Deployment(
            self.machines.servers[0], self.directory, nc, client.client, self._settings
        )
        resting = Resting(
            deployment,
            history,
            recorder,
            conditions.patience,
            consumers_count=conditions.servers == 1,
        )
        await self._send_again(client)
        await resting.come()
        if not resting.stuck:
            await self._ask_for_outcomes(client)
            await resting.come()
            first = {str(c): await resting.first_line(c) for c in self.life.change_sets}
            await resting.write_down(first_lines=first)
        await self._read_states(deployment)
        self._listen(daemon)
        if resting.stuck or not whole or self.seen.unreadable or conditions.sync != "always":
            await self._ask_the_doctor()

    def _daemon(self, stack: AsyncExitStack) -> Daemon:
        variables = daemon_variables(self.life.conditions, self.machines)
        daemon = Daemon("after", self.directory, variables | {"INSTANCE_ID": "after"})
        stack.callback(daemon.kill)
        return daemon

    @property
    def _settings(self) -> Settings:
        size = self.life.conditions.size
        return Settings.model_validate(
            {
                "nats": {"url": self.machines.servers[0].url, "replicas": size.replicas},
                "store": {"root": str(self.machines.directory / "store")},
                "ack_wait": size.lease,
            }
        )

    async def _send_again(self, client: ChaosClient) -> None:
        """Send each request again of which no client knew whether it is stored, as clients do."""
        known = self.life.history.events[: self.cut.seen]
        stored = {_asked(event) for event in known if event.kind is Kind.STORED}
        for event in known:
            if event.kind is not Kind.SENT or event.data.get("poison"):
                continue
            if _asked(event) not in stored:
                change_set, request = _change_set(event.data["change_set"]), event.data["request"]
                await client.client.enqueue_updates(
                    *change_set, event.data["batch"], request_id=RequestId.from_str(request)
                )

    async def _ask_for_outcomes(self, client: ChaosClient) -> None:
        """Of the last requests that were stored, as a client does that missed the replies."""
        known = self.life.history.events[: self.cut.seen]
        sound = {e.data["request"] for e in known if e.kind is Kind.SENT and not _is_poison(e.data)}
        stored = [e.data for e in known if e.kind is Kind.STORED and e.data["request"] in sound]
        for data in stored[-_ASKED_AGAIN:]:
            request = RequestId.from_str(data["request"])
            await client.learn(_change_set(data["change_set"]), request)

    async def _read_states(self, deployment: Deployment) -> None:
        change_sets = self.life.change_sets
        results = await asyncio.gather(
            *(write_down_values(deployment, c, self.seen.history) for c in change_sets),
            return_exceptions=True,
        )
        for change_set, result in zip(change_sets, results, strict=True):
            if result is not None:
                self.seen.unreadable[str(change_set)] = f"{type(result).__name__}: {result}"

    def _listen(self, daemon: Daemon) -> None:
        for entry in daemon.events():
            if entry.get("level") in ("warning", "error", "critical"):
                self.seen.said[entry["event"]] += 1
        for event, exception in errors_in(daemon.said_in_all()):
            self.seen.history.add(
                Kind.UNFORESEEN, daemon=daemon.name, event=event, exception=exception
            )

    async def _ask_the_doctor(self) -> None:
        variables = daemon_variables(self.life.conditions, self.machines)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
        environment |= {f"REBASER_{name}": value for name, value in variables.items()}
        done = await asyncio.to_thread(
            rebaser, "doctor", "--all", "--json", environment=environment, timeout=60
        )
        if not done.stdout:
            self.seen.findings[f"doctor failed: {done.stderr[-200:]}"] += 1
            return
        for finding in json.loads(done.stdout):
            if finding["severity"] != "note":
                is_loss = finding["check"] == "losses"  # which says what else no finding does
                what = finding["where"] if is_loss else finding["what"]
                self.seen.findings[f"{finding['check']}: {what}"] += 1


async def _starts(daemon: Daemon) -> bool:
    """Whether it is ready in the end, in place of ending."""
    await eventually(
        lambda: daemon.process.poll() is not None or bool(daemon.said("ready")), within=120
    )
    return daemon.process.poll() is None


async def _last_sequences(streams: Streams) -> dict[str, int | None]:
    names = streams.requests_stream, streams.commits_stream, streams.dead_letters_stream
    return {name: await _last_sequence(streams.js, name) for name in names}


async def _last_sequence(js: JetStream, stream: str) -> int | None:
    """Or None if the stream is lost."""
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        try:
            state = (await js.stream_info(stream)).state
            return int(state.last_seq)
        except StreamNotFound:
            if clock() - began > _GONE_FOR:
                return None
        except JetStreamError:  # without a leader
            if clock() - began > ANSWERS_WITHIN:
                raise
        await asyncio.sleep(_LOOK)


def _asked(event: Event) -> tuple[str, str]:
    return event.data["change_set"], event.data["request"]


def _change_set(name: str) -> ChangeSet:
    return Subjects().parse_change_set(f"rebaser.requests.{name}")


def _is_poison(sent: dict[str, object]) -> bool:
    return bool(sent.get("poison"))
