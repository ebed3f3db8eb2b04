"""The directory: services and keys by name, in the registry, for people and commands.

Nothing relies on it: ids follow from names.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, Never

import structlog

from rebaser_core.calls import key_of, service_id
from rebaser_core.errors import AlreadyRegistered, MessageError
from rebaser_core.ids import RequestId
from rebaser_core.jetstream import JetStreamError
from rebaser_core.records import ChangeSetKind, ChangeSetRecordV1, WorkspaceRecordV1, now
from rebaser_core.registry import Registry
from rebaser_core.streams import Streams
from rebaser_server.handlers.service import Service

log: Final = structlog.get_logger()

_MAX_KNOWN: Final = 100_000
"""Number of keys that this process remembers to have entered."""
_AT_ONCE: Final = 8
_RETRY_DELAY: Final = 5.0  # seconds

Name = tuple[str, str]
"""A service and a key."""


class Directory:
    """Enters what this process serves, beside the calls."""

    def __init__(self, streams: Streams, services: Mapping[str, Service]) -> None:
        self._registry = Registry(streams)
        self._services = services
        self._entered: set[str] = set()
        self._known: dict[Name, None] = {}
        self._waiting: dict[Name, None] = {}
        self._arrival = asyncio.Event()

    def see(self, service: str, key: str) -> None:
        """Enter the key, soon, unless this process has."""
        name = service, key
        if name in self._known:
            return
        self._known[name] = None
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._waiting[name] = None
        self._arrival.set()

    async def enter_services(self) -> None:
        """Enter the services, once.

        Raises:
            JetStreamError: not all are entered; `run` does it.
        """
        for service in self._services.values():
            if service.name not in self._entered:
                await self._enter_service(service)
                self._entered.add(service.name)

    async def run(self) -> Never:
        """Enter the services, and then each key that is seen, until cancelled."""
        while True:
            try:
                await self.enter_services()
                break
            except JetStreamError as error:
                log.warning("services not entered yet", error=str(error))
                await asyncio.sleep(_RETRY_DELAY)
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            while self._waiting:
                some = [*self._waiting][:_AT_ONCE]
                try:
                    await asyncio.gather(*(self._enter(name) for name in some))
                except JetStreamError as error:
                    log.warning("keys not entered yet", error=str(error))
                    await asyncio.sleep(_RETRY_DELAY)
                    continue
                for name in some:
                    self._waiting.pop(name, None)

    async def _enter_service(self, service: Service) -> None:
        workspace = service_id(service.name)
        record = WorkspaceRecordV1(
            id=RequestId.from_bytes(workspace.bytes),
            workspace_id=workspace,
            name=service.name,
            # No key has this name: a service has no head.
            head=key_of(service.name, "").change_set_id,
            created_at=now(),
        )
        # Another workspace may have these very ids, or a newer release have written the records.
        try:
            await self._registry.create_workspace(record)
        except (AlreadyRegistered, MessageError) as error:
            log.error("service not entered", service=service.name, reason=str(error))
        try:
            await self._registry.put_service(service.describe())
        except MessageError as error:
            log.error("service not described", service=service.name, reason=str(error))

    async def _enter(self, name: Name) -> None:
        change_set = key_of(*name)
        record = ChangeSetRecordV1(
            id=RequestId.from_bytes(change_set.change_set_id.bytes),
            **change_set._asdict(),
            name=name[1],
            kind=ChangeSetKind.KEY,
            head=change_set.change_set_id,
            created_at=now(),
        )
        try:
            await self._registry.create_change_set(record)
        except AlreadyRegistered:  # closed or deleted since
            return
        except MessageError as error:
            log.error("key not entered", service=name[0], key=name[1], reason=str(error))
