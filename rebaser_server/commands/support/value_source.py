"""The source of a change set's values for a command: the log and the store, or any Rebaser.

The store takes packages of the extra `server`. Without them, or if the store's location is not
known, a Rebaser is asked.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from rebaser_client.errors import ReadRefused
from rebaser_client.reader import ValueSet
from rebaser_core.errors import Unreachable
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.errors import StoreNotKnown

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle
    from rebaser_client.reader import BranchDifference, RevertPlan
    from rebaser_core.queries import ValueSnapshot
    from rebaser_server.commit_log.state_loader import StateLoader

T = TypeVar("T")

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
    """Values by their ids."""
    names: Mapping[str, str]
    """Name → id."""
    function_name: Callable[[str], str]
    """Function from a function's id to its name, or to that id if the name is not known."""
    is_due: bool
    """Whether computed values may still be those of earlier inputs."""


def reason(status: str, message: str | None, names: Mapping[str, str | None]) -> str:
    """The reason why a value has no result; `names` are those of its inputs, by id."""
    if status == "blocked" and message is not None:
        return f"blocked by {names.get(message) or message}"
    return message or status


def reads_store() -> bool:
    """Whether the packages are installed that read the store."""
    return all(find_spec(name) is not None for name in _STORE_NEEDS)


async def read_values(
    deployment: Deployment, change_set: ChangeSet, commit: int | None = None
) -> ReadValues:
    """The change set as of that commit, or as of the last one.

    Raises:
        NotRetained, ReadRefused: that commit is older than the history that is kept.
        Unreachable: the packages that read the store are missing, and no Rebaser answers.
        StoreNotKnown: the location of the store is not known, and no Rebaser answers.
    """

    async def from_store(loader: "StateLoader") -> ReadValues:
        return await _load_values(loader, commit)

    async def from_rebaser(handle: "ChangeSetHandle") -> ReadValues:
        answer = await handle.values(at=commit)
        names: dict[str, str] = {}
        with suppress(ReadRefused):  # a Rebaser of an older release, or too many for an answer
            names = {each.id: each.name for each in await handle.functions()}
        return _answered(answer, names)

    return await _read(deployment, change_set, from_store, from_rebaser)


async def read_difference(
    deployment: Deployment, change_set: ChangeSet, *, computed: bool
) -> "BranchDifference":
    """The difference that applying the branch would make; with `computed`, the results, too.

    Raises:
        NotABranch, ReadRefused: it is no branch, or no Rebaser has taken it up yet.
        Unreachable, StoreNotKnown: as `read_values`.
    """

    async def from_store(loader: "StateLoader") -> "BranchDifference":
        from rebaser_server.queries.comparisons import diff

        return await diff(loader, computed=computed)

    async def from_rebaser(handle: "ChangeSetHandle") -> "BranchDifference":
        return await handle.difference(computed=computed)

    return await _read(deployment, change_set, from_store, from_rebaser)


async def read_revert_plan(
    deployment: Deployment, change_set: ChangeSet, commit: int, *, force: bool
) -> "RevertPlan":
    """The batch that undoes the commit.

    Raises:
        NotRetained, NotRevertible, ReadRefused: the commit cannot be undone.
        Unreachable, StoreNotKnown: as `read_values`.
    """

    async def from_store(loader: "StateLoader") -> "RevertPlan":
        from rebaser_server.queries.comparisons import plan_revert

        return await plan_revert(loader, commit, force=force)

    async def from_rebaser(handle: "ChangeSetHandle") -> "RevertPlan":
        return await handle.plan_revert(commit, force=force)

    return await _read(deployment, change_set, from_store, from_rebaser)


async def _read(
    deployment: Deployment,
    change_set: ChangeSet,
    from_store: Callable[["StateLoader"], Awaitable[T]],
    from_rebaser: Callable[["ChangeSetHandle"], Awaitable[T]],
) -> T:
    handle = deployment.client.change_set(*change_set)
    if not reads_store():
        return await from_rebaser(handle)
    try:
        loader = await deployment.state_loader(change_set)
    except StoreNotKnown:
        with suppress(Unreachable):
            return await from_rebaser(handle)
        raise
    return await from_store(loader)


async def _load_values(loader: "StateLoader", commit: int | None) -> ReadValues:
    from rebaser_server.graph_application.content import graph_of

    state = await loader.load(commit)
    graph = graph_of(state)

    def function_name(func_id: str) -> str:
        function = graph.funcs.get(func_id)
        return func_id if function is None else function.name or func_id

    return ReadValues(graph.values, graph.names, function_name, state.control.dvu_due)


def _answered(answer: ValueSet, functions: Mapping[str, str]) -> ReadValues:
    values = {str(each.id): _AnsweredValue(each) for each in answer.values()}
    names = {each.name: key for key, each in values.items() if each.name is not None}
    return ReadValues(
        values, names, lambda func_id: functions.get(func_id, func_id), answer.may_be_stale
    )


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
