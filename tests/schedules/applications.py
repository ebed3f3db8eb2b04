"""What the Rebasers of a schedule are for: Rebaser's own value graph, or the accounts of a bank."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol
from unittest import mock

from rebaser_core.calls import key_of
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.commit_log.state import State, StateMachine
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.run import Executor
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import GraphStateMachine
from rebaser_server.handlers import Context, sending
from rebaser_server.handlers.application import HandlerApplication
from rebaser_server.handlers.checkpoints import content_of
from rebaser_server.handlers.event_loop import HandlerExecution, HandlerHeldUp
from rebaser_server.handlers.service import Handler
from rebaser_server.ops.pages import ValuePresentation
from rebaser_server.ops.presentation import Presentation
from rebaser_server.service.composition import MakeApplication, MakePresentation
from rebaser_server.service.daemon import ValueGraph
from rebaser_server.settings.settings import Settings
from rebaser_server.store.checkpoints import Checkpoints
from tests.chaos.bank import bank
from tests.chaos.history import Kind
from tests.schedules.example_batches import Sheet
from tests.schedules.fake_delta import STORE_FAILS, Lake
from tests.schedules.record import Record

SLOW = 0.2
"""Share of the calls that take a while."""


class Kin(Protocol):
    """All that a schedule asks of an application."""

    has_branches: bool

    def installed(self) -> AbstractContextManager[None]:
        """In force while the schedule runs."""

    def change_sets(self, count: int, rng: random.Random) -> dict[ChangeSet, Any]:
        """What there is, with what clients know of it; they send to the first `count`."""

    presentation: MakePresentation

    def maker(self, settings: Settings, executor: Executor) -> MakeApplication:
        """For one Rebaser."""

    def machine(self) -> StateMachine:
        """For who reads the states at the end."""

    def audit(self, change_set: ChangeSet, state: State, record: Record) -> None:
        """Note the content at the end, or what is wrong with it."""

    def lose(self, process: str) -> int:
        """Lose the last writes of a process whose machine lost power; how many."""


class ValueGraphs:
    """Rebaser's own."""

    has_branches = True
    presentation = ValuePresentation

    def __init__(self, root: str, lake: Lake) -> None:
        self._root = root
        self._lake = lake

    def installed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def change_sets(self, count: int, rng: random.Random) -> dict[ChangeSet, Any]:
        workspace = WorkspaceId()
        return {ChangeSet(workspace, ChangeSetId()): Sheet(rng) for _ in range(count)}

    def maker(self, settings: Settings, executor: Executor) -> MakeApplication:
        return ValueGraph(settings, executor, lambda: 1, CostModel())

    def machine(self) -> StateMachine:
        return GraphStateMachine(Checkpoints(self._root))

    def audit(self, change_set: ChangeSet, state: State, record: Record) -> None:
        if state.control.closing is None:
            graph = graph_of(state)
            found = {v.id: [v.status.value, v.value] for v in graph.values.values()}
            record.history.add(Kind.VALUES, change_set=str(change_set), values=found)
            if graph.roots:
                record.violation(f"S5 {change_set}: roots left at rest: {graph.roots}")

    def lose(self, process: str) -> int:
        return self._lake.lose(process)


class Bank:
    """Accounts that pay each other: what is sent twice, not at all or too early shows in books."""

    has_branches = False
    presentation = staticmethod(lambda _: Presentation())

    def __init__(self, seed: object, fails: Callable[[], bool]) -> None:
        """`fails`: whether the store does not answer this time."""
        self._random = random.Random(f"bank {seed}")
        self._fails = fails
        self._files = _Memory(fails)
        self._names: dict[ChangeSet, str] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Call handlers inline: threads know nothing of virtual time. NATS has no alarms here."""
        bank.prepare()
        with (
            mock.patch.object(HandlerExecution, "call", self._call),
            mock.patch.object(sending, "_SCHEDULES_SINCE", (99, 0)),
        ):
            yield

    async def _call(
        self,
        handler: Handler,
        context: Context[Any],
        arguments: Sequence[Any],
        named: dict[str, Any],
        middleware: object,
    ) -> Any:
        del middleware
        if self._random.random() < SLOW:
            await asyncio.sleep(self._random.random() * 0.1)
        result = handler.function(context, *arguments, **named)
        if self._fails():
            raise HandlerHeldUp("as the seed wants it")
        return result

    def change_sets(self, count: int, rng: random.Random) -> dict[ChangeSet, Any]:
        """One more than clients call, so that one account at least is only paid to."""
        del rng
        names = [f"account-{number}" for number in range(count + 1)]
        self._names |= {key_of(bank.name, name): name for name in names}
        return self._names

    def maker(self, settings: Settings, executor: Executor) -> MakeApplication:
        return lambda streams, batches, _: self._application(streams, batches)

    def _application(self, streams: Any, batches: Any) -> HandlerApplication:
        application = HandlerApplication(streams, batches, {bank.name: bank})
        # Of which these use the calls below.
        application._files = application._seals._files = self._files  # type: ignore[assignment]
        return application

    def machine(self) -> StateMachine:
        return self._application(mock.Mock(), mock.Mock())

    def audit(self, change_set: ChangeSet, state: State, record: Record) -> None:
        content = content_of(state)
        account = bank.new_state() if content.state is None else bank.read_state(content.state, 1)
        record.history.add(
            Kind.ACCOUNT,
            change_set=str(change_set),
            key=self._names[change_set],
            state=json.loads(bank.dump_state(account)),
            sending=len(content.outgoing),
            ticks=0,
        )

    def lose(self, process: str) -> int:
        return 0


class _Memory:
    """Files in memory."""

    def __init__(self, fails: Callable[[], bool]) -> None:
        self._fails = fails
        self._files: dict[str, bytes] = {}

    def put(self, path: str, data: bytes) -> None:
        self._answer()
        self._files[path] = data

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._answer()
        # A seed gives one history: what would be drawn is always the same.
        self._files.setdefault(path, bytes(len(data)))

    def get(self, path: str) -> Any:
        self._answer()
        return self._files[path]

    def delete(self, path: str) -> None:
        self._answer()
        self._files.pop(path, None)

    def list_names(self, directory: str) -> list[str]:
        self._answer()
        return [p.rpartition("/")[2] for p in self._files if p.rpartition("/")[0] == directory]

    def _answer(self) -> None:
        if self._fails():
            raise OSError(STORE_FAILS)
