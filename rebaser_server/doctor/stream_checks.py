"""Whether each stream of the deployment takes what is written."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from rebaser_core.jetstream import NatsUnreachable
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.nats_writes import may_try, refusal
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.doctor.findings import Finding, Severity

_REMEDY: Final = (
    "restart the NATS server, the leader of this stream if it has several, once its disk has "
    "room: until then it may take nothing; its log says why a write failed"
)


async def streams(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams that NATS does not write to, as far as this user may try it."""
    js, names = provisioner.js, _streams(provisioner.subjects)
    may = await may_try(js)
    tried = [name for name in names if may(name)]
    errors = await asyncio.gather(*(refusal(js, provisioner.subjects, name) for name in tried))
    for name, error in zip(tried, errors, strict=True):
        if error is not None:
            is_silent = isinstance(error, NatsUnreachable)
            what = f"NATS {'does not answer for it' if is_silent else 'does not write to it'}"
            yield Finding("streams", name, f"{what}: {error}", Severity.ERROR, remedy=_REMEDY)
    if left := [name for name in names if name not in tried]:
        yield Finding(
            "streams",
            "NATS",
            f"not tried, since NATS does not say that this user may purge them: {', '.join(left)}",
            Severity.NOTE,
            remedy="a Rebaser logs `nats cannot write` if NATS does not write requests or commits",
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
