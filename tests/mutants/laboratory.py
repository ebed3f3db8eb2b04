"""A copy of the tree in which mutants live, one at a time, and meet the tests of their rows."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

from tests.helpers.paths import ROOT
from tests.mutants.mutants import Mutant, node_ids

TIME_LIMIT: Final = 120.0  # seconds for the tests of one mutant
_COPIED: Final = ("rebaser_core", "rebaser_client", "rebaser_server", "tests")
_QUICK_START: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
_TESTS_FAILED: Final = 1  # pytest's exit codes
_NO_TESTS_RAN: Final = (2, 3, 4, 5)


class Fate(Enum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    HUNG = "killed, by standing still"
    UNTRIED = "NOT TRIED: the tests take too long without it, too"

    @property
    def is_death(self) -> bool:
        return self in (Fate.KILLED, Fate.HUNG)


class Laboratory:
    """Runs tests against copies; the tree that it was made from stays as it is.

    Args:
        directory: an empty one, for the copy.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writes = 0
        ignored = shutil.ignore_patterns("__pycache__")
        for name in _COPIED:
            shutil.copytree(ROOT / name, directory / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", directory)

    def judge(self, mutant: Mutant, tests: tuple[str, ...]) -> Fate:
        """Run the tests with the mutant; if they stand still, also without it.

        Raises:
            RuntimeError: they did not run; has what pytest said.
        """
        with self._mutated(mutant):
            fate = self.run(tests)
        if fate is Fate.HUNG and self.run(tests) is Fate.HUNG:
            return Fate.UNTRIED  # on a machine that is too busy
        return fate

    def failing(self, tests: tuple[str, ...]) -> str:
        """Run the tests without a mutant; return what pytest says of those that fail.

        One that fails by itself would seem to kill its mutants.
        """
        done = self._pytest(tests, len(tests) * TIME_LIMIT, "--maxfail=20", "--tb=line")
        return "" if done.returncode == 0 else done.stdout[-3000:]

    def run(self, tests: tuple[str, ...]) -> Fate:
        """Run the tests with the files as they are; they survive what fails none."""
        try:
            done = self._pytest(tests, TIME_LIMIT, "-x")
        except subprocess.TimeoutExpired:
            return Fate.HUNG
        if done.returncode in _NO_TESTS_RAN:
            raise RuntimeError(done.stdout[-3000:])
        return Fate.KILLED if done.returncode == _TESTS_FAILED else Fate.SURVIVED

    def _pytest(
        self, tests: tuple[str, ...], limit: float, *options: str
    ) -> subprocess.CompletedProcess[str]:
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--no-header"),
            *("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", *options),
            *("-m", "not slow", *node_ids(tests)),
        ]
        environment = os.environ | _QUICK_START | {"PYTHONPATH": str(self._directory)}
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
            finally:  # servers and daemons of tests that stand still, too
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return subprocess.CompletedProcess(command, process.returncode, output)

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self._directory / mutant.file
        source = path.read_text()
        self._write(path, mutant.apply(source))
        try:
            yield
        finally:
            self._write(path, source)

    def _write(self, path: Path, source: str) -> None:
        """Write the file with a time of its own: by that Python knows what it compiled."""
        path.write_text(source)
        self._writes += 1
        os.utime(path, (self._writes, self._writes))
