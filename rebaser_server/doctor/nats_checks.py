"""Checks of the NATS servers, of the streams and their configuration, and of tasks."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from rebaser_core.errors import UnknownSubject, many
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ApiError, KeyValue, NatsUnreachable, ordered_reader
from rebaser_core.requests import ensure_task
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.configuration_faults import Effect, Fault, judge
from rebaser_server.cluster.nats_watch import (
    ALWAYS,
    UNKNOWN,
    read_durability,
    rooms,
)
from rebaser_server.cluster.nats_writes import CANNOT_WRITE, permissions, refusal
from rebaser_server.cluster.pauses import PauseStore, paused_since
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.cluster.reconciler import stray_letters_subject
from rebaser_server.commit_log.log import UNFINISHED
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.ops.answers import Answer, all_answers

_STATUS_TIMEOUT: Final = 0.3  # seconds for all Rebasers to send their status

_TRIAL_KEY: Final = "00000000000000000000000000"
"""Key of the record that a trial write deletes. No workspace has this id."""
_FULL: Final = 0.9
"""Part of the room in use from which the doctor reports it."""
_MORE_ROOM: Final = (
    "make room on the disks of NATS, or raise its limits (`max_file_store`, accounts)"
)


async def durability(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """Time at which confirmed messages are on NATS's disks, from its servers or else Rebasers."""
    found = await read_durability(provisioner.streams, monitoring)
    if monitoring is None:
        found = replace(found, sync=await _sync_known_to_rebasers(provisioner) or found.sync)
    remedy = "docs/reliability.md says what a power cut takes; `sync_interval: always` keeps all"
    yield Finding(
        "durability",
        "NATS",
        f"sync: {found.sync}; replicas: {found.replicas}",
        Severity.NOTE,
        remedy="" if found.sync == ALWAYS else remedy,
    )


async def _sync_known_to_rebasers(provisioner: Provisioner) -> str:
    """Time at which the servers sync, from the Rebasers that know it; empty if none does."""
    said = {
        (report.get("durability") or {}).get("sync", UNKNOWN)
        for report in await _reports(provisioner)
    }
    return " or ".join(sorted(sync for sync in said if not sync.startswith(UNKNOWN)))


async def _reports(provisioner: Provisioner) -> list[Answer]:
    streams = provisioner.streams
    return await all_answers(streams.js.nc, streams.join("rebaser.status"), _STATUS_TIMEOUT)


async def room(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """Whether NATS takes writes, and how much room is left, as far as it says so.

    The trial deletes a record that is not there, which NATS stores as it stores any message.
    """
    try:
        streams = provisioner.streams
        await KeyValue(streams.js, streams.change_sets_bucket).purge(_TRIAL_KEY)
    except (ApiError, NatsUnreachable) as error:
        is_silent = isinstance(error, NatsUnreachable)
        what = f"a trial write is {'not confirmed' if is_silent else 'refused'}: {error}"
        remedy = f"{_MORE_ROOM}; the servers' logs say why a write failed"
        yield Finding("room", "NATS", what, Severity.ERROR, remedy=remedy)
    for each in await rooms(provisioner.streams, monitoring):
        if each.fullness >= _FULL:
            what = f"{each.used:,} of {each.limit:,} {each.unit} are in use"
            yield Finding("room", each.where, what, Severity.WARNING, remedy=_MORE_ROOM)


_REMEDY: Final = (
    "restart the NATS server, the leader of this stream if it has several, once its disk has "
    "room: until then it may take nothing; its log says why a write failed"
)


async def streams(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams that NATS does not write to, as this user may try it or else the Rebasers say."""
    js, names = provisioner.streams.js, _streams(provisioner.streams)
    may = await permissions(js)
    tried = [name for name in names if may(f"STREAM.PURGE.{name}")]
    errors = await asyncio.gather(*(refusal(provisioner.streams, name) for name in tried))
    for name, error in zip(tried, errors, strict=True):
        if error is not None:
            is_silent = isinstance(error, NatsUnreachable)
            what = f"NATS {'does not answer for it' if is_silent else 'does not write to it'}"
            yield Finding("streams", name, f"{what}: {error}", Severity.ERROR, remedy=_REMEDY)
    left = [name for name in names if name not in tried]
    reports = await _reports(provisioner) if left else []
    problems = {tuple(report["natsProblem"]) for report in reports if report.get("natsProblem")}
    for what, remedy in sorted(problems):
        if what.startswith(CANNOT_WRITE):
            yield Finding("streams", "NATS", what, Severity.ERROR, remedy=remedy)
    if left and not reports:
        yield Finding(
            "streams",
            "NATS",
            f"not tried, since NATS does not say that this user may purge them: {', '.join(left)}",
            Severity.NOTE,
            remedy="start a Rebaser: it may, and says whether NATS writes requests and commits",
        )


def _streams(subjects: Subjects) -> Sequence[str]:
    return (
        subjects.requests_stream,
        subjects.tasks_stream,
        subjects.commits_stream,
        subjects.dead_letters_stream,
        f"OBJ_{subjects.batches_bucket}",
        f"KV_{subjects.change_sets_bucket}",
        f"KV_{subjects.pauses_bucket}",
    )


async def configuration(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams, consumer and bucket that are missing or configured differently."""
    faults = judge(await provisioner.diff())
    may = await permissions(provisioner.streams.js) if faults else lambda _: None
    for fault in faults:
        finding = _configuration_finding(provisioner, fault)
        missing = fault.drift.field == "existence"
        kind, _, name = fault.drift.name.partition(" ")
        call = f"STREAM.{'CREATE' if missing else 'UPDATE'}.{name}"
        if kind == "stream" and finding.repair is not None and may(call) is False:
            remedy = (
                f"`rebaser doctor --repair` with a NATS user that may publish to "
                f"{provisioner.streams.js.prefix}.{call}, which this one may not"
            )
            finding = replace(finding, repair=None, remedy=remedy)
        yield finding


def _configuration_finding(provisioner: Provisioner, fault: Fault) -> Finding:
    drift = fault.drift
    if drift.field == "allow_atomic":
        return Finding(
            "configuration",
            drift.name,
            "takes no atomic batches, so commits are stored one by one",
            Severity.WARNING,
            remedy="`rebaser doctor --repair`, once all Rebasers are of this release",
            repair=partial(provisioner.mend, drift.name),
        )
    missing = drift.field == "existence"
    is_requests = drift.name == f"stream {provisioner.streams.requests_stream}"
    repair = provisioner.recreate_requests if missing and is_requests else None
    if fault.can_be_mended:
        repair = partial(provisioner.mend, drift.name)
    return Finding(
        "configuration",
        drift.name,
        "is missing" if missing else _difference(fault),
        Severity.ERROR,
        remedy=fault.remedy,
        repair=repair,
    )


def _difference(fault: Fault) -> str:
    drift = fault.drift
    what = f"{drift.field} is {drift.actual!r}, not {drift.expected!r}: {fault.meaning}"
    return f"{what}; no new work is begun" if fault.effect is Effect.STOPS else what


async def missing_tasks(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Change sets with requests or due updates but without a task, and tasks without work."""
    names = provisioner.streams
    tasks = await _named(provisioner, names.tasks_stream)
    requests = await _named(provisioner, names.requests_stream)
    due = await _due(provisioner)
    paused = await PauseStore(provisioner.streams).all()
    for change_set in sorted((requests | due) - tasks):
        if paused_since(paused, change_set) is not None:
            continue
        what = "requests" if change_set in requests else "a dependent values update due"
        repair = partial(_make_task, provisioner, change_set)
        yield Finding("tasks", str(change_set), f"has {what} and no task", repair=repair)
    if paused:
        what = f"paused: {', '.join(scope.key for scope in sorted(paused, key=str))}"
        remedy = "`rebaser pause` shows by whom; `rebaser resume` ends a pause"
        yield Finding("pauses", "deployment", what, Severity.NOTE, remedy=remedy)
    idle = tasks - requests - due
    if idle:
        what = f"{many(len(idle), 'task')} of change sets without work, as in the quiet period"
        yield Finding("tasks", names.tasks_stream, what, Severity.NOTE)


async def _named(provisioner: Provisioner, stream: str) -> set[ChangeSet]:
    return _change_sets(provisioner, await provisioner.streams.js.stream_subjects(stream))


async def _due(provisioner: Provisioner) -> set[ChangeSet]:
    """Change sets whose last commit has the header of an unfinished update."""
    subjects = []
    reader = ordered_reader(
        provisioner.streams.js,
        provisioner.streams.commits_stream,
        deliver_policy="last_per_subject",
        headers_only=True,
    )
    async with reader:
        while (commit := await reader.next(idle_timeout=0)) is not None:
            if UNFINISHED in commit.headers:
                subjects.append(commit.subject)
    return _change_sets(provisioner, subjects)


def _change_sets(provisioner: Provisioner, subjects: Iterable[str]) -> set[ChangeSet]:
    found = set()
    for subject in subjects:
        with suppress(UnknownSubject):  # `strays` reports it
            found.add(provisioner.streams.parse_change_set(subject))
    return found


async def _make_task(provisioner: Provisioner, change_set: ChangeSet) -> None:
    if not await ensure_task(provisioner.streams, change_set):
        raise NatsUnreachable("NATS did not confirm the task")


async def strays(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Messages whose subject does not name a change set: no Rebaser takes them."""
    names = provisioner.streams
    streams = (
        names.requests_stream,
        names.tasks_stream,
        names.commits_stream,
        names.dead_letters_stream,
    )
    for stream in streams:
        for subject, count in (await provisioner.streams.js.stream_subjects(stream)).items():
            if subject == stray_letters_subject(names):
                continue
            try:
                names.parse_change_set(subject)
            except UnknownSubject as error:
                yield Finding(
                    "strays",
                    stream,
                    f"{many(count, 'message')}: {error}",
                    Severity.ERROR,
                    remedy=f"find the publisher, then `nats stream purge {stream} "
                    f"--subject '{subject}'`",
                )


async def dead_letters(provisioner: Provisioner) -> AsyncIterator[Finding]:
    stream = provisioner.streams.dead_letters_stream
    count = (await provisioner.streams.js.stream_info(stream)).state.messages
    if count:
        yield Finding("dead letters", stream, many(count, "dead letter"), Severity.NOTE)
