"""The archive of classes is used where it fits, and never asked for where there is none."""

from pathlib import Path

import pytest

from rebaser_server.compute.spark.options import archive_path, jvm_options, training_options


def java_home(directory: Path, version: str) -> Path:
    directory.mkdir()
    (directory / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    return directory


@pytest.mark.parametrize(
    ("version", "ending", "option"),
    [
        ("17.0.15", ".jsa", "-XX:SharedArchiveFile="),
        ("21", ".jsa", "-XX:SharedArchiveFile="),
        ("25.0.2", ".aot", "-XX:AOTCache="),
    ],
)
def test_each_java_has_an_archive_of_its_own(
    tmp_path: Path, version: str, ending: str, option: str
) -> None:
    archive = archive_path(tmp_path, java_home(tmp_path / "java", version))
    assert archive is not None

    assert archive.name.endswith(f"java-{version}{ending}")
    assert jvm_options(archive) == [], "there is none yet"
    archive.touch()
    assert jvm_options(archive)[0] == f"{option}{archive}"
    assert any(str(archive) in said for said in training_options(archive))


def test_a_java_that_does_not_say_its_version_has_none(tmp_path: Path) -> None:
    assert archive_path(tmp_path, tmp_path) is None
