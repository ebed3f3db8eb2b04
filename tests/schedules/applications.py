"""What the Rebasers of a schedule are for: Rebaser's own value graph, or a counter of updates."""

from collections.abc import Callable
from typing import Any, Protocol

from rebaser_core.commits import RequestOutcome
from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state import State, StateMachine
from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.run import Executor
from rebaser_server.graph_application.content import graph_of
from rebaser_server.graph_application.state_machine import GraphStateMachine
from rebaser_server.ops.presentation import Presentation
from rebaser_server.ops.value_presentation import ValuePresentation
from rebaser_server.service.composition import MakeApplication, MakePresentation
from rebaser_server.service.daemon import ValueGraph
from rebaser_server.settings.settings import Settings
from rebaser_server.store.checkpoints import Checkpoints
from tests.chaos.history import Kind
from tests.helpers.counter import CounterApplication, total_of
from tests.schedules.fake_delta import STORE_FAILS, Lake
from tests.schedules.record import Record


class Kin(Protocol):
    """All that a schedule asks of an application."""

    has_branches: bool

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


class Counters:
    """The smallest one: whatever takes effect twice, or not at all, shows in a number."""

    has_branches = False
    presentation = staticmethod(lambda _: Presentation())

    def __init__(self, fails: Callable[[], bool]) -> None:
        """`fails`: whether the store does not answer this time."""
        self._files = _Memory(fails)

    def maker(self, settings: Settings, executor: Executor) -> MakeApplication:
        return lambda *_: CounterApplication(self._files)

    def machine(self) -> StateMachine:
        return CounterApplication(self._files)

    def audit(self, change_set: ChangeSet, state: State, record: Record) -> None:
        applied = {
            i for i, known in state.recent.items() if known.outcome is RequestOutcome.APPLIED
        }
        expected = sum(
            len(event.data["batch"])
            for event in record.history.of(Kind.SENT)
            if event.data["request"] in set(map(str, applied))
        )
        if total_of(state) != expected:
            record.violation(f"{change_set} counts {total_of(state)} updates, not {expected}")

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

    def get(self, path: str) -> Any:
        self._answer()
        return self._files[path]

    def list_names(self, directory: str) -> list[str]:
        self._answer()
        return [p.rpartition("/")[2] for p in self._files if p.rpartition("/")[0] == directory]

    def _answer(self) -> None:
        if self._fails():
            raise OSError(STORE_FAILS)
