"""Whether each stream of the deployment takes what is written.

A server whose disk was full leaves what is published to a stream unanswered until it is started
again. It still answers what is asked about the stream, and refuses what it would not store.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from rebaser_core.jetstream import JetStream, JetStreamError, NatsUnreachable, StreamNotFound
from rebaser_core.subjects import Subjects
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.doctor.findings import Finding, Severity

_PERMISSIONS_TIMEOUT: Final = 1.0  # seconds; a user who may not ask gets no answer
_REMEDY: Final = (
    "restart the NATS server, the leader of this stream if it has several, once its disk has "
    "room: until then it may take nothing; its log says why a write failed"
)


async def streams(provisioner: Provisioner) -> AsyncIterator[Finding]:
    """Streams that NATS does not write to, as far as this user may try it."""
    js, names = provisioner.js, _streams(provisioner.subjects)
    may_publish = await _permissions(js)
    tried = [name for name in names if may_publish(f"{js.prefix}.STREAM.PURGE.{name}")]
    errors = await asyncio.gather(*(_try(js, provisioner.subjects, name) for name in tried))
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
            remedy="a Rebaser logs `commit not confirmed` if NATS does not write its commits",
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


async def _try(js: JetStream, subjects: Subjects, stream: str) -> JetStreamError | None:
    """Why NATS does not write to the stream; it is asked to delete what no stream has.

    A publish whose precondition fails would not do: a server that cannot write refuses it, too.
    """
    try:
        await js.purge(stream, subject=subjects.join("rebaser.nothing"))
    except StreamNotFound:  # the check of configurations reports it
        return None
    except JetStreamError as error:
        return error
    return None


async def _permissions(js: JetStream) -> Callable[[str], bool]:
    """Whether this user may publish on a subject; False where NATS does not say."""
    try:
        reply = await js.connection.request("$SYS.REQ.USER.INFO", b"", timeout=_PERMISSIONS_TIMEOUT)
        info: Mapping[str, Any] = json.loads(reply.data)["data"]
    except (JetStreamError, ValueError, LookupError):
        return lambda _: False
    publish = (info.get("permissions") or {}).get("publish") or {}
    allowed, denied = publish.get("allow") or [">"], publish.get("deny") or []

    def may_publish(subject: str) -> bool:
        return any(_matches(each, subject) for each in allowed) and not any(
            _matches(each, subject) for each in denied
        )

    return may_publish


def _matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with wildcards means."""
    parts, tokens = pattern.split("."), subject.split(".")
    for place, part in enumerate(parts):
        if part == ">":
            return len(tokens) > place
        if place == len(tokens) or part not in ("*", tokens[place]):
            return False
    return len(parts) == len(tokens)
