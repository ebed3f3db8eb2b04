"""Where a command reads values: in the log and the store, or from any Rebaser.

The store takes packages of the extra `server`. An installation without them asks a Rebaser, and so
does one where it is not known where the store is.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

from rebaser_client.value_reader import ValueSet
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.errors import StoreNotKnown

if TYPE_CHECKING:
    from rebaser_core.queries.value_query import ValueSnapshot

_STORE_NEEDS: Final = ("pyarrow", "deltalake")


class ReadValue(Protocol):
    """A value with its definition."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def value(self) -> Any: ...
    @property
    def text(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def message(self) -> str | None: ...
    @property
    def func_id(self) -> str | None: ...
    @property
    def inputs(self) -> Any: ...
    def input_ids(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class ReadValues:
    """The values of a change set as of one commit."""

    values: Mapping[str, ReadValue]
    """By their ids."""
    names: Mapping[str, str]
    """Name → id."""
    function_name: Callable[[str], str]
    """Id of a function → its name, or that id where the name is not known."""
    is_due: bool
    """Whether computed values may still be those of earlier inputs."""


def reads_store() -> bool:
    """Whether the packages are installed that read the store."""
    return all(find_spec(name) is not None for name in _STORE_NEEDS)


async def read_values(
    deployment: Deployment, change_set: ChangeSet, commit: int | None = None
) -> ReadValues:
    """The change set as of that commit, or as of the last one.

    Raises:
        NotRetained, ReadRefused: that commit is older than the history that is kept.
        Unreachable: the packages that read the store are missing, or it is not known where that
            is, and no Rebaser answers.
    """
    if reads_store():
        with suppress(StoreNotKnown):  # then a Rebaser knows it
            return await _from_store(deployment, change_set, commit)
    return _answered(await deployment.client.reader(*change_set).values(at=commit))


async def _from_store(
    deployment: Deployment, change_set: ChangeSet, commit: int | None
) -> ReadValues:
    from rebaser_server.graph_application.content import graph_of

    state = (await (await deployment.state_loader(change_set)).load(commit)).state
    graph = graph_of(state)

    def function_name(func_id: str) -> str:
        function = graph.funcs.get(func_id)
        return func_id if function is None else function.name or func_id

    return ReadValues(graph.values, graph.names, function_name, state.control.dvu_due)


def _answered(answer: ValueSet) -> ReadValues:
    values = {str(each.id): _AnsweredValue(each) for each in answer.values()}
    names = {each.name: key for key, each in values.items() if each.name is not None}
    return ReadValues(values, names, str, bool(answer.may_be_stale))


class _AnsweredValue:
    def __init__(self, snapshot: "ValueSnapshot") -> None:
        self.id = str(snapshot.id)
        self.name = snapshot.name
        self.value = snapshot.value
        self.status = snapshot.status
        self.message = snapshot.message
        self.func_id = None if snapshot.func_id is None else str(snapshot.func_id)
        self.inputs = _plain(snapshot.inputs)

    @property
    def text(self) -> str:
        return json.dumps(self.value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def input_ids(self) -> list[str]:
        ids: list[str] = []
        for taken in self.inputs.values():
            ids += [taken] if isinstance(taken, str) else taken
        return ids


def _plain(inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Inputs by argument with their ids as text."""
    return {
        argument: list(map(str, taken)) if isinstance(taken, list | tuple) else str(taken)
        for argument, taken in (inputs or {}).items()
    }
