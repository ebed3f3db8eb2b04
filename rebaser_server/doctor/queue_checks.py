"""Checks of the streams and their configuration, and that all work has a task."""

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial

from rebaser_client.requests import ensure_task
from rebaser_core.errors import UnknownSubject, many
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import NatsUnreachable, ordered_reader
from rebaser_server.cluster.configuration_faults import Effect, Fault, judge
from rebaser_server.cluster.pauses import PauseStore, paused_since
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.cluster.reconciler import stray_letters_subject
from rebaser_server.commit_log.log import UNFINISHED
from rebaser_server.doctor.findings import Finding, Severity


async def configuration(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams, consumer and bucket that are missing or configured differently."""
    for fault in judge(await provisioner.diff()):
        drift = fault.drift
        if drift.field == "allow_atomic":
            yield Finding(
                "configuration",
                drift.name,
                "takes no atomic batches, so commits are stored one by one",
                Severity.WARNING,
                remedy="`rebaser doctor --repair`, once all Rebasers are of this release",
                repair=partial(provisioner.mend, drift.name),
            )
            continue
        missing = drift.field == "existence"
        is_requests = drift.name == f"stream {provisioner.subjects.requests_stream}"
        repair = provisioner.recreate_requests if missing and is_requests else None
        if fault.can_be_mended:
            repair = partial(provisioner.mend, drift.name)
        yield Finding(
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
    names = provisioner.subjects
    tasks = await _named(provisioner, names.tasks_stream)
    requests = await _named(provisioner, names.requests_stream)
    due = await _due(provisioner)
    paused = await PauseStore(provisioner.js, names).all()
    for change_set in sorted((requests | due) - tasks):
        if paused_since(paused, change_set) is not None:
            continue
        what = "requests" if change_set in requests else "a dependent values update due"
        repair = partial(_make_task, provisioner, change_set)
        yield Finding("tasks", str(change_set), f"has {what} and no task", repair=repair)
    if paused:
        what = f"paused: {', '.join(scope.key for scope in sorted(paused, key=str))}"
        remedy = "`rebaser pauses` shows by whom; `rebaser resume` ends a pause"
        yield Finding("pauses", "deployment", what, Severity.NOTE, remedy=remedy)
    idle = tasks - requests - due
    if idle:
        what = f"{many(len(idle), 'task')} of change sets without work, as in the quiet period"
        yield Finding("tasks", names.tasks_stream, what, Severity.NOTE)


async def _named(provisioner: Provisioner, stream: str) -> set[ChangeSet]:
    """Change sets that have a message in the stream."""
    return _change_sets(provisioner, await provisioner.js.stream_subjects(stream))


async def _due(provisioner: Provisioner) -> set[ChangeSet]:
    """Change sets whose last commit has the header of an unfinished update."""
    subjects = []
    reader = ordered_reader(
        provisioner.js,
        provisioner.subjects.commits_stream,
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
            found.add(provisioner.subjects.parse_change_set(subject))
    return found


async def _make_task(provisioner: Provisioner, change_set: ChangeSet) -> None:
    if not await ensure_task(provisioner.js, provisioner.subjects, change_set):
        raise NatsUnreachable("NATS did not confirm the task")


async def strays(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Messages whose subject does not name a change set: no Rebaser takes them."""
    names = provisioner.subjects
    streams = (
        names.requests_stream,
        names.tasks_stream,
        names.commits_stream,
        names.dead_letters_stream,
    )
    for stream in streams:
        for subject, count in (await provisioner.js.stream_subjects(stream)).items():
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
    """The number of dead letters."""
    stream = provisioner.subjects.dead_letters_stream
    count = (await provisioner.js.stream_info(stream)).state.messages
    if count:
        yield Finding("dead letters", stream, many(count, "dead letter"), Severity.NOTE)
