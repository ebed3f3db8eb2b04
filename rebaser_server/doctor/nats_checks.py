"""Checks of the NATS servers themselves."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from nats.aio.msg import Msg

from rebaser_core.jetstream import ApiError, KeyValue, NatsUnreachable
from rebaser_core.jetstream.connection import request_all
from rebaser_server.cluster.nats_watch import (
    ALWAYS,
    UNKNOWN,
    read_durability,
    read_monitoring,
    urls_of,
)
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.runtime.containment import contained

_STATUS_TIMEOUT: Final = 0.3  # seconds for all Rebasers to send their status
_LIMITS_TIMEOUT: Final = 1.0  # seconds; a user who may not ask gets no answer

TRIAL_KEY: Final = "00000000000000000000000000"
"""Of the record that a trial write deletes. No workspace has this id."""
_FULL: Final = 0.9
"""Part of the room that is in use when the doctor begins to say so."""
_MORE_ROOM: Final = (
    "make room on the disks of NATS, or raise its limits (`max_file_store`, accounts)"
)


async def durability(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """When NATS has on its disks what it confirms, as its servers say it or else the Rebasers."""
    found = await read_durability(provisioner.js, provisioner.subjects, monitoring)
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
    """When the servers sync, as the Rebasers say that know it; empty if none does."""
    known: set[str] = set()

    def read(reply: Msg) -> bool:
        with contained("announcement"):
            report = json.loads(reply.data) if reply.data else {}  # empty: no Rebaser runs
            sync = (report.get("durability") or {}).get("sync", UNKNOWN)
            known.update({sync} if not sync.startswith(UNKNOWN) else ())
        return False

    subject = provisioner.subjects.join("rebaser.status")
    await request_all(provisioner.js.nc, subject, b"", read, _STATUS_TIMEOUT)
    return " or ".join(sorted(known))


async def room(provisioner: Provisioner, monitoring: str | None) -> AsyncIterator[Finding]:
    """Whether NATS takes what is written, and how much more it would take, as far as it says so.

    The trial deletes a record that is not there, which NATS stores as it stores any message.
    """
    try:
        await KeyValue(provisioner.js, provisioner.subjects.change_sets_bucket).purge(TRIAL_KEY)
    except (ApiError, NatsUnreachable) as error:
        is_silent = isinstance(error, NatsUnreachable)
        what = f"a trial write is {'not confirmed' if is_silent else 'refused'}: {error}"
        remedy = f"{_MORE_ROOM}; the servers' logs say why a write failed"
        yield Finding("room", "NATS", what, Severity.ERROR, remedy=remedy)
    with suppress(NatsUnreachable):
        account = await provisioner.js.request("INFO", timeout=_LIMITS_TIMEOUT)
        for where, used, limit in _limits(account):
            for finding in _nearly_full(where, used, limit):
                yield finding
    if monitoring is not None:
        reports, _ = await read_monitoring(urls_of(monitoring))  # `durability` has the problems
        for report in reports:
            for finding in _nearly_full(f"server {report.server}", report.stored, report.capacity):
                yield finding


def _limits(account: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Octets in use and the limit, of the account or each of its tiers."""
    for tier, usage in (account.get("tiers") or {"": account}).items():
        yield f"account {tier}".strip(), usage["storage"], usage["limits"]["max_storage"]


def _nearly_full(where: str, used: int, limit: int) -> Iterator[Finding]:
    if 0 < limit * _FULL <= used:
        what = f"{used:,} of {limit:,} octets are in use"
        yield Finding("room", where, what, Severity.WARNING, remedy=_MORE_ROOM)
