"""`rebaser checkpoint` says which store it reads, which may not be that of the daemons."""

from pathlib import Path

import pytest

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.jetstream import deadlines
from rebaser_server.commands.checkpoint import until_stored
from rebaser_server.graph_application.state_machine import open_checkpoints
from rebaser_server.settings.settings import StoreSettings


async def test_a_wait_for_a_store_without_the_commit_is_explained_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = open_checkpoints(StoreSettings(root=str(tmp_path)))
    change_set = ChangeSet(WorkspaceId(), ChangeSetId())

    with pytest.raises(TimeoutError):
        async with deadlines.within(3):
            await until_stored(checkpoints, change_set, 5, explain_after=0)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"waiting until {checkpoints.uri(change_set)} has commit 5; ")
    assert "REBASER_STORE__ROOT must be what the daemons have" in line
