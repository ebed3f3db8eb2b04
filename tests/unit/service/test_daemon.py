"""What a daemon imports once it is ready."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("directory", "is_imported"), [("change_sets", True), ("results", False)])
def test_what_reads_tables_is_imported_early_where_there_are_some(
    tmp_path: Path, directory: str, *, is_imported: bool
) -> None:
    """It takes long, and else the first change sets of a start with a checkpoint wait for it."""
    (tmp_path / directory).mkdir()
    code = (
        "import sys; from rebaser_server.service.daemon import _import_if_needed;"
        "from rebaser_server.settings.settings import StoreSettings;"
        f"_import_if_needed(StoreSettings(root={str(tmp_path)!r}));"
        "print('pyarrow.dataset' in sys.modules)"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == f"{is_imported}\n"
