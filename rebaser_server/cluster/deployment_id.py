"""The id of a deployment, which NATS and the store both have, so that each knows the other.

A store under another path, or another deployment's, would otherwise pass for an empty one.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from rebaser_core.ids import Ulid
from rebaser_core.jetstream import KeyNotFound, KeyValue, StreamNotFound, WrongLastSequence
from rebaser_core.streams import Streams
from rebaser_server.errors import DeploymentInconsistent
from rebaser_server.files import CHANGE_SETS, DEPLOYMENT, StoreFiles

log: Final = structlog.get_logger()

_KEY: Final = "rebaser.deployment.id"
"""Key of the id in the registry's bucket. It has three tokens, and records have one or two, so that
no list has it."""
_LOOKS_AGAIN: Final = (0.1, 0.3, 0.6, 1.0)
"""Seconds until ids that differ are looked at again."""


@dataclass(frozen=True, slots=True)
class DeploymentId:
    streams: Streams
    files: StoreFiles

    async def ensure(self) -> None:
        """Require one id in NATS and in the store; give an id to a deployment without.

        Raises:
            DeploymentInconsistent: they do not belong together.
            OSError: the store cannot be read or written now.
        """
        in_nats, in_store = await self.in_nats(), await self.in_store()
        for delay in _LOOKS_AGAIN:
            if None in (in_nats, in_store) or in_nats == in_store:
                break
            await asyncio.sleep(
                delay
            )  # of Rebasers that start at once, one adopts what another gave
            in_nats, in_store = await self.in_nats(), await self.in_store()
        if in_nats is None and (in_store is None or not await self._is_emptied()):
            await self._establish(in_store or str(Ulid()))
        elif in_nats != in_store:
            raise DeploymentInconsistent(await self.problem())

    async def require_kept(self) -> None:
        """Require that NATS was not emptied under the store, before any stream is made there.

        In streams made anew, Rebasers that still run would begin their change sets anew.

        Raises:
            DeploymentInconsistent: NATS has nothing, and the store has change sets.
        """
        if await self.in_nats() is None and await self.in_store() and await self._is_emptied():
            raise DeploymentInconsistent(await self.problem())

    async def problem(self) -> str:
        """Reason why NATS and the store do not belong together; empty if they may."""
        in_nats, in_store = await self.in_nats(), await self.in_store()
        if in_nats == in_store or (in_nats is None and not await self._is_emptied()):
            return ""
        where, nats = f"the store {self.files.root}", f"NATS is of deployment {in_nats}"
        if in_store is None:
            return f"{where} has no id, but {nats}: it is another directory, or was lost"
        if in_nats is None:
            nats = "NATS of none, and empty: it lost its streams, or is another one"
        return f"{where} is of deployment {in_store}, but {nats}"

    async def in_nats(self) -> str | None:
        try:
            return (await self._bucket.get(_KEY)).value.decode()
        except (KeyNotFound, StreamNotFound):
            return None

    async def in_store(self) -> str | None:
        try:
            payload = await asyncio.to_thread(self.files.get, DEPLOYMENT)
        except FileNotFoundError:
            return None
        try:
            return str(json.loads(payload)["deployment"])
        except (ValueError, LookupError, TypeError):
            return "(unreadable)"

    async def adopt(self) -> None:
        """Give the store NATS's id: a person decided that it is the right store."""
        in_nats = await self.in_nats()
        if in_nats is not None:
            await self._put(in_nats)

    async def _establish(self, new: str) -> None:
        """Give the deployment its id: the store's, which one of several Rebasers writes.

        So all of them give NATS one id, even if a Rebaser dies or gets no answer.
        """
        await asyncio.to_thread(self.files.put_if_absent, DEPLOYMENT, _payload(new))
        given = await self.in_store() or new
        with suppress(WrongLastSequence):  # another Rebaser was faster, with the same
            await self._bucket.create(_KEY, given.encode())
        log.info("deployment", id=given)

    async def _put(self, deployment: str) -> None:
        await asyncio.to_thread(self.files.put, DEPLOYMENT, _payload(deployment))

    async def _is_emptied(self) -> bool:
        """Whether the store has change sets, and NATS has never had a commit, or no stream of them.

        A NATS that has commits and no id has lost the record, as at a power cut before it was
        synced; each change set is compared with its checkpoints anyway (S-6).
        """
        if not await asyncio.to_thread(self.files.list_names, CHANGE_SETS):
            return False
        try:
            info = await self.streams.js.stream_info(self.streams.commits_stream)
        except StreamNotFound:
            return True
        return not info.state.last_seq

    @property
    def _bucket(self) -> KeyValue:
        return KeyValue(self.streams.js, self.streams.change_sets_bucket)


def _payload(deployment: str) -> bytes:
    return json.dumps({"deployment": deployment}).encode()
