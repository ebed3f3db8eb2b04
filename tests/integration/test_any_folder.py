"""Everything works in a folder of any name."""

import asyncio
import json
import os
import re
import string
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rebaser_client.client import connect
from rebaser_core.ids import ChangeSet
from rebaser_server.store.checkpoints import Checkpoints
from tests.helpers.paths import OF_README, ROOT

PRINTABLE = "".join(sorted({*string.printable} - {*string.whitespace} - {"/"})) + " "
ALL = f"{PRINTABLE}%2F%20x ü\N{GRINNING FACE}\n"
"""A name with all that ext4 allows of ASCII that can be printed, and more."""

pytestmark = pytest.mark.spark


def test_the_name_has_every_character_that_is_printed() -> None:
    assert set(ALL) >= {chr(code) for code in range(32, 127) if chr(code) != "/"}


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """All that is installed, in such a folder, too.

    But for the colon, which parts the folders of a search path for Python and for Java.
    """
    directory = tmp_path / ALL.replace(":", "") / "site"
    directory.mkdir(parents=True)
    packages = Path(sysconfig.get_path("purelib"))
    ours = [ROOT / name for name in ("rebaser_client", "rebaser_core", "rebaser_server")]
    for package in [*packages.iterdir(), *ours]:
        if package.name not in ("__pycache__", "site-packages"):
            (directory / package.name).symlink_to(package)
    return directory


def environment(folder: Path, installation: Path, **more: str) -> dict[str, str]:
    """What a process has in whose environment each folder is such a one."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    places = {"HOME": str(folder), "TMPDIR": str(folder), "PYTHONPATH": str(installation)}
    return inherited | places | more


@asynccontextmanager
async def upped(folder: Path, environment: dict[str, str]) -> AsyncIterator[str]:
    """The URL of NATS of an `up` with its data there; at the end it is stopped as by Ctrl-C."""
    with (folder / "up.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "rebaser_server", "up", "--port", "-1", "--json"),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=environment | {"REBASER_OPS__PORT": "0", "REBASER_SPARK__MASTER": "local[2]"},
        )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(180):
            facts = json.loads(await process.stdout.readline())
        assert facts["data"] == str(folder / "rebaser-data")
        yield facts["nats"]
    finally:
        process.terminate()
        await process.wait()


async def run(*arguments: str, folder: Path, environment: dict[str, str]) -> str:
    """What a program prints that succeeds."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr + (folder / "up.log").read_text()
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("all_on_spark", [True, False])
async def test_values_are_computed_and_kept_in_any_folder(
    tmp_path: Path, installation: Path, *, all_on_spark: bool
) -> None:
    """The README's program, a checkpoint, and what of it is there after a restart."""
    folder = tmp_path / ALL
    folder.mkdir()
    [example] = re.findall(OF_README, (ROOT / "README.md").read_text(), re.DOTALL)
    inherited = environment(folder, installation)
    idle = {"REBASER_SPARK__WARM": "false"}
    where = {"REBASER_SPARK__MIN_AFFECTED": "0"} if all_on_spark else idle

    async with upped(folder, inherited | where) as nats:
        (folder / "program.py").write_text(example.replace("nats://127.0.0.1:4222", nats))
        printed = await run("program.py", folder=folder, environment=inherited)
        here = inherited | {"REBASER_NATS__URL": nats}
        command = ("-m", "rebaser_server", "checkpoint", "shop", "--json")
        stored = json.loads(await run(*command, folder=folder, environment=here))
    async with upped(folder, inherited | idle) as nats, connect(nats) as client:
        shop = await client.addresses.find("shop")
        values = await client.change_set(*shop.change_set).values()
        kept = await asyncio.to_thread(_values_of_checkpoint, folder, shop.change_set)
        (folder / "program.py").write_text(example.replace("nats://127.0.0.1:4222", nats))
        again = await run("program.py", folder=folder, environment=inherited)

    assert printed == "3 added, 0 changed, 0 removed, 0 as they are\ngross: 119\n"
    assert stored["stored"] >= stored["commit"] > 0
    assert {value.name: value.value for value in values.values()} == kept
    assert kept == {"net": 100, "tax": 19, "gross": 119}
    assert again == "0 added, 0 changed, 0 removed, 3 as they are\ngross: 119\n"
    with os.scandir(tmp_path) as entries:
        assert {entry.name for entry in entries} == {ALL, installation.parent.name}


def _values_of_checkpoint(folder: Path, change_set: ChangeSet) -> dict[str, object]:
    checkpoint = Checkpoints(str(folder / "rebaser-data" / "store")).load(change_set)
    assert checkpoint is not None
    return {value.name or "": value.value for value in checkpoint.graph.values.values()}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [(b"not-text-\xff", "not text in UTF-8"), (b"a:b", "into a virtual environment in another")],
)
def test_a_folder_that_cannot_be_used_is_refused_before_anything_is_promised(
    tmp_path: Path, name: bytes, remedy: str
) -> None:
    """Such a name has no spelling for Rust, or parts the folders of Java's search path."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    package = Path(sysconfig.get_path("purelib")) / "pyspark"
    (folder / "pyspark").symlink_to(package)
    inserted = f"import sys; sys.path.insert(0, {str(folder)!r}); "
    started = (
        "from rebaser_server.__main__ import run; sys.argv[1:] = ['up', '--port', '-1']; run()"
    )

    done = subprocess.run(
        [sys.executable, "-c", inserted + started],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 1
    assert remedy in done.stderr
    assert "is up" not in done.stderr
