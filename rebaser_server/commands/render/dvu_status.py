"""Where the dependent values updates of a deployment stand: what logs and Rebasers say of them."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from nats.aio.msg import Msg

from rebaser_core.commits import Commit, CommitV1
from rebaser_core.errors import MessageError, UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.consumers.ordered_consumers import ordered_reader
from rebaser_core.pause_record import scopes_of
from rebaser_server.cluster.pauses import PauseBook, Paused
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commit_log.log import DVU_DUE
from rebaser_server.queries.cached_state import archive_of
from rebaser_server.settings.settings import Settings
from rebaser_server.values.graph import ValueStatus

PATIENCE: Final = 0.3  # seconds for all Rebasers to say what they do
CANCEL_PATIENCE: Final = 1.0  # seconds for the one that has the change set to answer

Row = dict[str, Any]


async def updates(at: Deployment, only: ChangeSet | None = None) -> list[Row]:
    """Updates that run, and those that are due and do not, which are the first to look at.

    Whether one is due stands in the log, how far it is only its Rebaser knows, and says
    if its ops endpoint is enabled.
    """
    reports, due, paused = await asyncio.gather(
        _asked(at, at.subjects.subject("rebaser.status"), PATIENCE),
        _due(at, only),
        PauseBook(at.js, at.subjects).all(),
    )
    held: dict[tuple[str, str], tuple[str, Row | None]] = {}
    crowded = {  # who names only some of what it holds
        str(report["instance"])
        for report in reports
        if report["slots"]["busy"] > len(report["holdings"])
    }
    for report in reports:
        for holding in report.get("holdings", ()):
            key = holding["workspace"], holding["changeSet"]
            if holding["update"] or key not in held:
                held[key] = report["instance"], holding["update"]
    rows = [_row(change_set, line, held, crowded, paused) for change_set, line in due.items()]
    return sorted(rows, key=lambda row: (row["state"] == "running", row["changeSet"]))


def _row(
    change_set: ChangeSet,
    line: CommitV1,
    held: dict[tuple[str, str], tuple[str, Row | None]],
    crowded: set[str],
    paused: Paused,
) -> Row:
    owner = line.head.owner.rpartition("/")[0]
    instance, update = held.get((str(change_set[0]), str(change_set[1])), (None, None))
    if update is not None:
        state = "running"
    elif any(scope in paused for scope in scopes_of(change_set)):
        state = "paused"
    elif instance is None and owner in crowded:
        state = "not named"
    elif line.head.claim is not None:
        state = "claimed, not running"
    else:
        state = "due, not running"
    return {
        "workspace": str(change_set.workspace_id),
        "changeSet": str(change_set.change_set_id),
        "state": state,
        "affected": update and update["affected"],
        "done": update and update["done"],
        "since": update and update["since"],
        "failures": line.head.dvu_failures,
        "instance": instance or owner or None,
    }


async def _due(at: Deployment, only: ChangeSet | None) -> dict[ChangeSet, CommitV1]:
    """Change sets whose last line says that an update is due, with it: a header of each known."""
    stream, found = at.subjects.commits_stream, dict[ChangeSet, CommitV1]()
    if only is not None:
        subjects = [at.subjects.commits(only)]
    else:
        subjects = []
        heads = ordered_reader(at.js)(
            at.js, stream, deliver_policy="last_per_subject", headers_only=True
        )
        async with heads:
            while (line := await heads.next(quiet=0)) is not None:
                if DVU_DUE in line.headers:
                    subjects.append(line.subject)
    for subject in subjects:
        stored = await at.js.get_message(stream, last_by_subject=subject)
        if stored is None or DVU_DUE not in stored.headers:
            continue
        try:
            head = Commit.decode(stored.headers, stored.payload)
            change_set = at.subjects.change_set_of(subject)
        except (MessageError, UnknownSubject):  # `rebaser doctor` says so
            continue
        if head.head.dvu_due:
            found[change_set] = head
    return found


async def failed_in(at: Deployment, settings: Settings, change_set: ChangeSet) -> Row:
    """The values that have none: how many failed, how many for others' sake, and which failed."""
    graph = (await archive_of(at.js, settings, change_set).restored(None)).state.graph
    values = [
        v for v in graph.values.values() if v.status in (ValueStatus.FAILED, ValueStatus.BLOCKED)
    ]
    failed = [v for v in values if v.status is ValueStatus.FAILED]
    return {
        "failed": len(failed),
        "blocked": len(values) - len(failed),
        "values": [
            {"id": v.id, "name": v.name or v.id, "status": v.status.value, "message": v.message}
            for v in failed
        ],
    }


async def cancel(at: Deployment, change_set: ChangeSet) -> bool | None:
    """Have the update in hand stopped; whether there was one. None: nobody has the change set."""
    answers = await _asked(
        at,
        at.subjects.cancellations(change_set),
        CANCEL_PATIENCE,
        enough=lambda answer: bool(answer.get("cancelled")),  # who was overtaken may be first
    )
    return any(answer.get("cancelled") for answer in answers) if answers else None


async def _asked(
    at: Deployment,
    subject: str,
    patience: float,
    *,
    enough: Callable[[Row], bool] = lambda _: False,
) -> list[Row]:
    """What is answered to an empty question within so many seconds, or until it is `enough`."""
    nc, inbox = at.js.nc, at.js.nc.new_inbox()
    answers: list[Row] = []
    done = asyncio.Event()

    async def take(message: Msg) -> None:
        if not message.data:  # nobody is there
            done.set()
            return
        with suppress(ValueError):
            answers.append(json.loads(message.data))
            if enough(answers[-1]):
                done.set()

    subscription = await nc.subscribe(inbox, cb=take)
    try:
        await nc.publish(subject, b"", reply=inbox)
        with suppress(TimeoutError):
            async with deadlines.within(patience):
                await done.wait()
    finally:
        await subscription.unsubscribe()
    return answers
