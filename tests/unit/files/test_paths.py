"""Paths of the store's files, by keys that clients may have sent."""

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.files import (
    batch_file,
    change_set_directory,
    is_batch,
    key_of,
    run_directory,
    run_of_key,
)

RUN = "a" * 64
RESULT_BATCH = f"{RUN}.{'b' * 64}"


def test_checkpoints_lie_below_their_workspace() -> None:
    """A change set has one directory, in that of its workspace."""
    change_set = ChangeSet(WorkspaceId(), ChangeSetId())

    path = f"change_sets/{change_set.workspace_id}/{change_set.change_set_id}"
    assert change_set_directory(change_set) == path


def test_a_batch_that_names_results_lies_beside_them() -> None:
    """So both are cleared away together."""
    assert batch_file(RESULT_BATCH).startswith(run_directory(RUN) + "/")
    assert run_of_key(RESULT_BATCH) == RUN
    assert run_of_key(RUN) is None


@pytest.mark.parametrize("key", [RUN, RESULT_BATCH])
def test_a_key_is_known_from_its_file(key: str) -> None:
    """The collector of garbage sees names of files only."""
    name = batch_file(key)

    assert is_batch(name)
    assert not is_batch(run_directory(RUN))
    assert key_of(name.removeprefix("results/")).replace("/", ".") == key


def test_no_key_leads_out_of_the_directory() -> None:
    """A client that sends a path as a key is refused."""
    with pytest.raises(ValueError, match="not a key"):
        batch_file("../change_sets/x")
