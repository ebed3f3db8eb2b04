"""What a publisher remembers of workspaces."""

from pathlib import Path
from typing import Any

from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.files import SharedFiles
from rebaser_server.graph_application.publisher import Publisher
from rebaser_server.store.publications import Publications
from rebaser_server.tables import TableFiles


async def test_workspaces_without_tables_are_forgotten(tmp_path: Path) -> None:
    """Each workspace that was ever worked on would stay else, also a deleted one."""
    unused: Any = None
    files = SharedFiles(str(tmp_path))
    publications = Publications(tmp_path / "published", TableFiles(files), 60.0)
    publisher = Publisher(publications, unused, files, 60.0)
    for _ in range(10):
        workspace = WorkspaceId()
        publisher._heads[workspace] = ChangeSet(workspace, ChangeSetId())

    await publisher._look(unused)

    assert publisher._heads == {}
