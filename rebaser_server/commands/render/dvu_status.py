"""The dependent values updates of a deployment, from the commit logs and the Rebasers."""

import asyncio
from typing import Any, Final

from rebaser_core.commits import Commit, CommitV1
from rebaser_core.errors import MessageError, UnknownSubject
from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream import ordered_reader
from rebaser_core.records import enclosing_scopes
from rebaser_server.cluster.pauses import Paused, PauseStore
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.commands.support.value_source import read_values
from rebaser_server.commit_log.log import UNFINISHED
from rebaser_server.ops.answers import all_answers

STATUS_TIMEOUT: Final = 0.3  # seconds for all Rebasers to send their status

Row = dict[str, Any]


async def updates(deployment: Deployment, only: ChangeSet | None = None) -> list[Row]:
    """Updates that run or are due, those that do not run first.

    The commit log says whether an update is due. Its progress comes from its Rebaser, if the
    ops endpoint of that is enabled.
    """
    reports, due, paused = await asyncio.gather(
        all_answers(deployment.js.nc, deployment.subjects.join("rebaser.status"), STATUS_TIMEOUT),
        _due(deployment, only),
        PauseStore(deployment.js, deployment.subjects).all(),
    )
    held: dict[tuple[str, str], tuple[str, Row | None]] = {}
    crowded = {  # Rebasers that hold more change sets than their status names
        str(report["instance"])
        for report in reports
        if report["slots"]["busy"] > len(report["holdings"])
    }
    for report in reports:
        for holding in report.get("holdings", ()):
            key = holding["workspace"], holding["changeSet"]
            if holding["update"] or key not in held:
                held[key] = report["instance"], holding["update"]
    rows = [_row(change_set, commit, held, crowded, paused) for change_set, commit in due.items()]
    return sorted(rows, key=lambda row: (row["state"] == "running", row["changeSet"]))


def _row(
    change_set: ChangeSet,
    commit: CommitV1,
    held: dict[tuple[str, str], tuple[str, Row | None]],
    crowded: set[str],
    paused: Paused,
) -> Row:
    owner = commit.control.owner.rpartition("/")[0]
    instance, update = held.get((str(change_set[0]), str(change_set[1])), (None, None))
    if update is not None:
        state = "running"
    elif any(scope in paused for scope in enclosing_scopes(change_set)):
        state = "paused"
    elif instance is None and owner in crowded:
        state = "not named"
    elif commit.control.claim is not None:
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
        "failures": commit.control.dvu_failures,
        "instance": instance or owner or None,
    }


async def _due(deployment: Deployment, only: ChangeSet | None) -> dict[ChangeSet, CommitV1]:
    """Change sets with an update due, and their last commits. A header marks those."""
    stream, due = deployment.subjects.commits_stream, dict[ChangeSet, CommitV1]()
    if only is not None:
        subjects = [deployment.subjects.commits(only)]
    else:
        subjects = []
        heads = ordered_reader(
            deployment.js, stream, deliver_policy="last_per_subject", headers_only=True
        )
        async with heads:
            while (entry := await heads.next(idle_timeout=0)) is not None:
                if UNFINISHED in entry.headers:
                    subjects.append(entry.subject)
    for subject in subjects:
        stored = await deployment.js.get_message(stream, last_by_subject=subject)
        if stored is None or UNFINISHED not in stored.headers:
            continue
        try:
            commit = Commit.decode(stored.headers, stored.payload)
            change_set = deployment.subjects.parse_change_set(subject)
        except (MessageError, UnknownSubject):  # `rebaser doctor` reports them
            continue
        if commit.control.dvu_due:
            due[change_set] = commit
    return due


async def failed_in(deployment: Deployment, change_set: ChangeSet) -> Row:
    """How many values failed, how many are blocked by them, and the failed ones."""
    read = await read_values(deployment, change_set)
    values = [v for v in read.values.values() if str(v.status) in ("failed", "blocked")]
    failed = [v for v in values if str(v.status) == "failed"]
    return {
        "failed": len(failed),
        "blocked": len(values) - len(failed),
        "values": [
            {"id": v.id, "name": v.name or v.id, "status": str(v.status), "message": v.message}
            for v in failed
        ],
    }
