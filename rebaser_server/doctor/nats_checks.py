"""Checks of the NATS servers themselves."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from nats.aio.msg import Msg

from rebaser_core.jetstream.connection.subscription import request_all
from rebaser_server.cluster.durability import ALWAYS, UNKNOWN, read_durability
from rebaser_server.cluster.provisioning import Provisioner
from rebaser_server.doctor.findings import Finding, Severity
from rebaser_server.runtime.containment import contained

_STATUS_TIMEOUT: Final = 0.3  # seconds for all Rebasers to send their status


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
