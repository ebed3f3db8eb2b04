"""The source of a change set's values for a command: the log and the store, or any Rebaser.

The store takes packages of the extra `server`. Without them, or if the store's location is not
known, a Rebaser is asked.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

from rebaser_client.change_set import ChangeSetHandle
from rebaser_client.errors import ReadRefused
from rebaser_client.reader import BranchDifference, RevertPlan
from rebaser_core.errors import Unreachable
from rebaser_core.ids import ChangeSet
from rebaser_core.queries import ValueSnapshot
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.errors import StoreNotKnown

if TYPE_CHECKING:
    from rebaser_server.commit_log.state_loader import StateLoader
    from rebaser_server.values.graph import Graph

T = TypeVar("T")

_STORE_NEEDS: Final = ("pyarrow", "deltalake")


@dataclass(frozen=True, slots=True)
class ReadValues:
    values: Mapping[str, ValueSnapshot]
    names: Mapping[str, str]
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

    async def from_rebaser(handle: ChangeSetHandle) -> ReadValues:
        answer, names = await handle.values(at=commit), await function_names(handle)
        by_name = {each.name: each.id for each in answer.values() if each.name is not None}
        return ReadValues(answer, by_name, lambda id_: names.get(id_, id_), answer.may_be_stale)

    return await _read(deployment, change_set, from_store, from_rebaser)


async def function_names(handle: ChangeSetHandle) -> dict[str, str]:
    """The name of each function by its id; none from a Rebaser that cannot say them."""
    with suppress(ReadRefused):  # a Rebaser of an older release, or too many for an answer
        return {each.id: each.name for each in await handle.functions()}
    return {}


async def read_difference(
    deployment: Deployment, change_set: ChangeSet, *, computed: bool
) -> BranchDifference:
    """The difference that applying the branch would make; with `computed`, the results, too.

    Raises:
        NotABranch, ReadRefused: it is no branch, or no Rebaser has taken it up yet.
        Unreachable, StoreNotKnown: as `read_values`.
    """

    async def from_store(loader: "StateLoader") -> BranchDifference:
        from rebaser_server.queries.comparisons import diff

        return await diff(loader, computed=computed)

    return await _read(
        deployment, change_set, from_store, lambda handle: handle.difference(computed=computed)
    )


async def read_revert_plan(
    deployment: Deployment, change_set: ChangeSet, commit: int, *, force: bool
) -> RevertPlan:
    """The batch that undoes the commit. Raises also as `read_values`.

    Raises:
        NotRetained, NotRevertible, ReadRefused: the commit cannot be undone.
    """

    async def from_store(loader: "StateLoader") -> RevertPlan:
        from rebaser_server.queries.reverts import plan_revert

        return await plan_revert(loader, commit, force=force)

    return await _read(
        deployment, change_set, from_store, lambda handle: handle.plan_revert(commit, force=force)
    )


async def _read(
    deployment: Deployment,
    change_set: ChangeSet,
    from_store: Callable[["StateLoader"], Awaitable[T]],
    from_rebaser: Callable[[ChangeSetHandle], Awaitable[T]],
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

    return ReadValues(_OfGraph(graph), graph.names, function_name, state.control.dvu_due)


class _OfGraph(Mapping[str, ValueSnapshot]):
    """The values of a graph, each read when it is asked for: few are shown of very many."""

    def __init__(self, graph: "Graph") -> None:
        self._graph = graph

    def __getitem__(self, key: str) -> ValueSnapshot:
        from rebaser_server.queries.values import row_of

        return row_of(self._graph, key).read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._graph.values)

    def __len__(self) -> int:
        return len(self._graph.values)
