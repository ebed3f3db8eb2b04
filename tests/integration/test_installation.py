"""What is built from the sources installs outside the tree, and its commands run without Spark."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.helpers.paths import OF_README, ROOT

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("installation")]

PACKAGES = ("rebaser_core", "rebaser_client", "rebaser_server")
NOT_OF_WORKERS = ("deltalake", "numpy", "pandas", "pyarrow", "pyspark", "rich", "sqlglot")
MOST_OCTETS_OF_WORKERS = 45 << 20
"""Of an installation with the extra `worker`, beside pip itself."""
SERVICE = """
from rebaser_server import Context, Service

counts = Service("counts")


@counts.handler
def twice(ctx: Context[None], number: int) -> int:
    return 2 * number
"""
ABSENT = ("aiohttp", "deltalake", "numpy", "pandas", "pyarrow", "pyspark")
MOST_OCTETS = 60 << 20
"""Of an installation with the extra `cli`, beside pip itself."""
GRAPH = {
    "sources": {"net": 100, "tax": 19},
    "values": {"gross": {"function": "sum", "inputs": ["net", "tax"]}},
}
ENVIRONMENT = {
    key: value for key, value in os.environ.items() if not key.startswith(("REBASER_", "PYTHON"))
}


def run(*words: str | Path, cwd: Path, **variables: str) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def venv(directory: Path, *packages: str | Path) -> Path:
    """Make a virtual environment with these packages; return its directory of programs."""
    run(sys.executable, "-m", "venv", directory, cwd=directory.parent)
    programs = directory / "bin"
    quiet = ("--quiet", "--disable-pip-version-check")
    run(programs / "python", "-m", "pip", "install", *quiet, *packages, cwd=directory)
    return programs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a wheel and a source distribution."""
    directory = tmp_path_factory.mktemp("built")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    programs = venv(directory / "builder", *project["build-system"]["requires"])
    run(programs / "hatchling", "build", "-d", directory / "dist", cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def programs(built: Path) -> Path:
    """Programs of an installation with the extra `cli`."""
    [wheel] = (built / "dist").glob("*.whl")
    return venv(built / "installed", f"{wheel}[cli]")


def files_of_wheel(directory: Path) -> set[str]:
    [wheel] = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_a_wheel_has_every_file_of_the_packages(built: Path) -> None:
    """Pages, scripts, examples and `py.typed` as well as modules."""
    tracked = run("git", "ls-files", *PACKAGES, cwd=ROOT).splitlines()

    files = files_of_wheel(built / "dist")

    assert set(tracked) <= files
    assert {name.partition("/")[0] for name in files} == set(PACKAGES)


def test_what_a_package_registry_shows_has_no_link_into_the_repository(built: Path) -> None:
    [wheel] = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))

    assert metadata["Author"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", metadata.get_payload()) == []
    assert "docs/quickstart.md" in metadata.get_payload()


async def test_the_client_alone_runs_the_example_of_the_readme(
    built: Path, deployment: Deployment, tmp_path: Path
) -> None:
    await deployment.start()
    [wheel] = (built / "dist").glob("*.whl")
    alone = venv(tmp_path / "alone", wheel)
    [example] = re.findall(OF_README, (ROOT / "README.md").read_text(), re.DOTALL)
    example = example.replace("nats://127.0.0.1:4222", deployment.nats.url)

    said = await asyncio.to_thread(run, alone / "python", "-c", example, cwd=tmp_path)

    assert said.endswith("gross: 119\n")


def test_a_source_distribution_makes_the_same_wheel(built: Path) -> None:
    [sources] = (built / "dist").glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(built / "unpacked", filter="data")
    [unpacked] = (built / "unpacked").iterdir()

    hatchling = built / "builder" / "bin" / "hatchling"
    run(hatchling, "build", "-t", "wheel", "-d", built / "again", cwd=unpacked)

    assert files_of_wheel(built / "again") == files_of_wheel(built / "dist")


def test_an_installation_for_the_command_line_has_neither_spark_nor_the_store(
    built: Path, programs: Path
) -> None:
    code = f"""
import importlib.util, rebaser_client, rebaser_server
assert not [name for name in {ABSENT!r} if importlib.util.find_spec(name)]
rebaser_client.connect
"""
    run(programs / "python", "-c", code, cwd=built)

    assert octets_in(built / "installed") < MOST_OCTETS


def octets_in(installed: Path) -> int:
    """Bytes of a virtual environment's packages, without those that install others."""
    [packages] = installed.glob("lib/python*/site-packages")
    others = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    own = (each for each in packages.iterdir() if not each.name.startswith(others))
    files = (file for each in own for file in [each, *each.rglob("*")] if file.is_file())
    return sum(file.stat().st_size for file in files)


async def test_a_worker_needs_few_packages_and_nothing_but_nats(
    built: Path, deployment: Deployment, tmp_path: Path
) -> None:
    [wheel] = (built / "dist").glob("*.whl")
    worker = await asyncio.to_thread(venv, tmp_path / "worker", f"{wheel}[worker]")
    code = (
        f"import importlib.util as u; assert not [n for n in {NOT_OF_WORKERS!r} if u.find_spec(n)]"
    )
    await asyncio.to_thread(run, worker / "python", "-c", code, cwd=tmp_path)
    assert octets_in(tmp_path / "worker") < MOST_OCTETS_OF_WORKERS
    (tmp_path / "counting.py").write_text(SERVICE)

    command = worker / "rebaser", "serve", "--app", "counting:counts"
    serving = await asyncio.create_subprocess_exec(
        *command, cwd=tmp_path, env=ENVIRONMENT | {"REBASER_NATS__URL": deployment.nats.url}
    )
    try:

        async def is_served() -> bool:
            return bool(await deployment.client.workspaces.services())

        await eventually(is_served, within=120)
        assert await deployment.client.service("counts").key("k").call("twice", 21) == 42
    finally:
        serving.terminate()
        code_at_end = await serving.wait()
    assert code_at_end == 0


def test_commands_without_a_deployment(programs: Path, tmp_path: Path) -> None:
    assert run(programs / "rebaser", "--version", cwd=tmp_path).startswith("rebaser ")
    assert "dead-letters" in run(programs / "rebaser", "--help", cwd=tmp_path)

    run(programs / "rebaser", "init", "shop", cwd=tmp_path)

    assert (tmp_path / "shop" / "pyproject.toml").exists()


async def test_commands_ask_a_deployment(
    nats_server: NatsServer, deployment: Deployment, programs: Path, tmp_path: Path
) -> None:
    await deployment.start()
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    settings = {"REBASER_NATS__URL": nats_server.url}

    async def rebaser(command: str) -> str:
        words = (programs / "rebaser", *command.split())
        return await asyncio.to_thread(run, *words, cwd=tmp_path, **settings)

    await rebaser("workspaces create shop")
    await rebaser("load shop graph.json --yes --wait")
    await rebaser("change-sets fork shop cheaper")
    await rebaser("values set shop/cheaper net 80 --wait")
    await rebaser("change-sets describe shop/cheaper")
    difference = json.loads(await rebaser("diff shop/cheaper --json"))
    reviewed = difference["digest"][:12]
    await rebaser(f"change-sets apply shop/cheaper --reviewed {reviewed} --wait")
    record = json.loads(await rebaser("change-sets describe shop/cheaper --json"))
    commit = record["application"]["commit"]
    undo = json.loads(await rebaser(f"revert shop {commit} --dry-run --json"))
    for command in (
        "load --dry-run shop graph.json",
        "values --tree shop",
        "why shop gross",
        "log shop",
        "queue",
        "dvu status shop",
        "dvu run shop sum --wait",
        "pause shop",
        "pause",
        "resume shop",
        "dead-letters",
        "checkpoint shop",
        "workspaces list",
        "change-sets list shop",
    ):
        await rebaser(command)

    [gross] = json.loads(await rebaser("values get shop gross --json"))
    assert gross["value"] == 99
    assert [change["name"] for change in difference["changes"]] == ["net"]
    assert [each["name"] for each in difference["computed"]] == ["gross"]
    assert [update["setValue"]["value"] for update in undo["updates"]] == [100]
