"""What a daemon imports once it is ready."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rebaser_server.runtime.tasks import background
from rebaser_server.service import daemon
from rebaser_server.settings.settings import StoreSettings


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


async def test_a_store_that_cannot_be_opened_does_not_end_a_daemon_that_imports_ahead():
    """The first load says what is wrong with it."""
    begins = asyncio.Event()
    begins.set()

    async with background(
        daemon._import_table_reader(StoreSettings(root="nosuch://bucket"), begins)
    ):
        await asyncio.sleep(0.2)  # time in which it fails, which nothing shows
