"""A copy of the tree in which mutants live, one at a time, and meet the tests of their rows."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from tests.helpers.paths import ROOT
from tests.mutants.mutants import LAYER, Mutant, node_ids

TIME_LIMIT: Final = 60.0  # seconds for the tests of one mutant
_COPIED: Final = ("rebaser_core", "tests/jetstream", "tests/helpers", "tests/conftest.py")
_QUICK_START: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_TESTS_FAILED: Final = 1  # pytest's exit codes
_NO_TESTS_RAN: Final = (2, 3, 4, 5)


class Fate(Enum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    HUNG = "killed, by standing still"


class Laboratory:
    """Runs tests against copies; the tree that it was made from stays as it is.

    Args:
        directory: an empty one, for the copy.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for name in _COPIED:
            self._copy(Path(name))
        shutil.copy(ROOT / "pyproject.toml", directory)

    def _copy(self, name: Path) -> None:
        ignored = shutil.ignore_patterns("__pycache__")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, self._directory / name, ignore=ignored)
        else:
            (self._directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self._directory / name)

    def judge(self, mutant: Mutant, tests: tuple[str, ...]) -> Fate:
        """Run the tests with the mutant.

        Raises:
            RuntimeError: they did not run; has what pytest said.
        """
        with self._mutated(mutant):
            return self.run(tests)

    def run(self, tests: tuple[str, ...]) -> Fate:
        """Run the tests with the files as they are; they survive what fails none."""
        command = [
            *(sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header"),
            *("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"),
            *("-m", "not slow", *node_ids(tests)),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=self._directory,
                env=os.environ | _QUICK_START,
                timeout=TIME_LIMIT,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Fate.HUNG
        if done.returncode in _NO_TESTS_RAN:
            raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
        return Fate.KILLED if done.returncode == _TESTS_FAILED else Fate.SURVIVED

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._directory / LAYER / mutant.file
        source = path.read_text()
        path.write_text(mutant.apply(source))
        try:
            yield
        finally:
            path.write_text(source)
