"""Checkpoints that show whether they are whole; as a program, a writer that never stops."""

import sys

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.updates import PutFunc, PutValue
from rebaser_server.store.checkpoints import CheckpointChanges, Checkpoints, take_changes
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase

CHANGE_SET = ChangeSet(WorkspaceId.from_int(1), ChangeSetId.from_int(2))


def ulid(number: int) -> str:
    return f"{number:026d}"


def function(func_id: str, code: str) -> PutFunc:
    return PutFunc(func_id=func_id, name="f", runtime="builtin", code=code)


def graph_of(commit: int) -> Graph:
    """Every value says of which commit it is, so that a mixture of two would show."""
    graph = Graph()
    values = [PutValue(value_id=ulid(number), value=commit) for number in range(300)]
    rebase(graph, 1, [function(ulid(0), f"f{commit}"), *values])
    return graph


def saved(
    checkpoints: Checkpoints, graph: Graph, commit: int, *, whole: bool = False
) -> CheckpointChanges:
    changes = take_changes(graph, commit, {"n": commit}, whole=whole)
    checkpoints.save(CHANGE_SET, changes)
    return changes


def save_on_and_on(root: str, commit: int) -> None:
    checkpoints = Checkpoints(root)
    while True:
        commit += 1
        saved(checkpoints, graph_of(commit), commit, whole=commit % 4 == 0)
        print(commit, flush=True)  # noqa: T201 - what the test waits for


if __name__ == "__main__":
    save_on_and_on(sys.argv[1], int(sys.argv[2]))
