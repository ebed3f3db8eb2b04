"""`rebaser init` writes a project whose next steps work as they are printed."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rebaser_server.commands.init import project_files
from rebaser_server.commands.support.arguments import Exit
from tests.helpers.command_line import run_command
from tests.helpers.deployment import SCALED

ACTIVE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHELL = {**os.environ, "PATH": ACTIVE}
NO_PYTHON = "/nowhere"


def written(directory: Path) -> list[str]:
    """The next steps of a project that is written there."""
    done = run_command(["init", str(directory), "--json"], {})
    assert done.code == 0, done.err
    return json.loads(done.out)["next"]


def test_a_project_is_written_and_its_test_passes(tmp_path: Path) -> None:
    """Also where the name of the directory is no name of a module."""
    project = tmp_path / "new" / "2nd shop"

    done = run_command(["init", str(project)], {})

    assert done.code == 0
    assert "Next:\n  cd " in done.out
    assert {path.name for path in project.iterdir()} == {*project_files("project_2nd_shop")}
    tested = [sys.executable, "-m", "unittest"]
    assert subprocess.run(tested, cwd=project, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("path", [ACTIVE, NO_PYTHON])
def test_commands_are_printed_as_the_shell_finds_them(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their whole path where the environment of this `rebaser` is not active."""
    monkeypatch.setenv("PATH", path)

    go, test, install, *rest = written(tmp_path / "shop")

    done = subprocess.run(
        ["/bin/sh", "-ec", f"{go}\n{test}"], cwd=tmp_path, check=False, env={"PATH": path}
    )
    assert done.returncode == 0
    assert test.startswith("python -m" if path == ACTIVE else str(Path(sys.executable).parent))
    assert install.endswith("pip install .")
    assert all(("/rebaser " in step) is (path == NO_PYTHON) for step in rest)


def test_where_scripts_do_not_start_python_runs_their_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of that name is not quoted by pip in the first line of a script."""
    scripts = tmp_path / 'a "b" $c' / "bin"
    scripts.mkdir(parents=True)
    for name in ("python", "pip", "rebaser"):
        (scripts / name).touch()
    monkeypatch.setattr(sys, "executable", str(scripts / "python"))
    monkeypatch.setenv("PATH", NO_PYTHON)

    _, test, install, up, *_ = map(shlex.split, written(tmp_path / "shop"))

    python = str(scripts / "python")
    assert test == [python, "-m", "unittest"]
    assert install == [python, "-m", "pip", "install", "."]
    assert up[:4] == [python, "-m", "rebaser_server", "up"]


@pytest.mark.parametrize("file", project_files("shop"))
def test_no_file_is_overwritten(file: str, tmp_path: Path) -> None:
    """If one is there, none of the others is written."""
    project = tmp_path / "shop"
    project.mkdir()
    (project / file).write_text("mine")

    done = run_command(["init", str(project)], {})

    assert done.code == 2
    assert f"has {file} already: give another directory" in done.err
    assert [(path.name, path.read_text()) for path in project.iterdir()] == [(file, "mine")]


@pytest.mark.parametrize("below", ["", "shop"])
def test_a_file_in_place_of_the_directory_is_refused(below: str, tmp_path: Path) -> None:
    """Or of one above it."""
    file = tmp_path / "taken"
    file.write_text("mine")

    done = run_command(["init", str(file / below)], {})

    assert done.code == 2
    assert f"{file} is a file" in done.err


def test_the_directory_in_which_one_is_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is no directory to go to either."""
    monkeypatch.setenv("PATH", ACTIVE)
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")

    done = run_command(["init"], {})

    assert "cd " not in done.out
    assert "rebaser workspaces create shop" in done.out
    assert Path("shop_functions.py").exists()


@pytest.mark.long
def test_the_next_steps_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed into a shell, one after the other, with what pip installs in a place of its own."""
    monkeypatch.setenv("PATH", ACTIVE)
    steps = written(tmp_path / "shop")
    [start] = [step for step in steps if step.startswith("rebaser up")]
    before, after = steps[: steps.index(start)], steps[steps.index(start) + 1 :]
    site = str(tmp_path / "site")
    own = {"PYTHONPATH": site, "REBASER_OPS__PORT": "0"}
    own |= {f"REBASER_{name}": text for name, text in SCALED.items()}  # without Spark
    how = {"env": SHELL | own, "text": True, "stdout": subprocess.PIPE}

    script = "\n".join(before).replace("pip install", f"pip install --target {site}")
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True, **how)
    words = [*shlex.split(start, comments=True), "--port", "-1", "--json"]
    with subprocess.Popen(words, cwd=tmp_path / "shop", **how) as up:
        try:
            how["env"]["REBASER_NATS__URL"] = json.loads(up.stdout.readline())["nats"]
            script = ["sh", "-ec", "\n".join(after)]
            done = subprocess.run(script, cwd=tmp_path / "shop", timeout=120, check=False, **how)
        finally:
            up.send_signal(signal.SIGTERM)

    assert done.returncode == 0
    assert "gross       119.0  ok      add_tax" in done.stdout


@pytest.mark.parametrize("words", [["up", "--data"], ["init"]], ids=" ".join)
@pytest.mark.parametrize("taken", ["proc", "file"])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(
    words: list[str], taken: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = {"proc": "/proc/x", "file": str(tmp_path / "file" / "x")}[taken]

    done = run_command([*words, folder], {})

    assert done.code in (Exit.FAILED, Exit.BAD_SETTINGS)
    assert folder.removesuffix("/x") in done.err
    assert "give a directory" in done.err
    assert "[Errno" not in done.err
    assert "REBASER_STORE__ROOT" not in done.err
