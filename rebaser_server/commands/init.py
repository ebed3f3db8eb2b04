"""`rebaser init`: write a small project to begin with.

The files of a small project: a graph, a function that computes a value of it, and its test.
"""

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from rebaser_server.commands.support.arguments import UnusableInput
from rebaser_server.terminal.lines import say_result

if TYPE_CHECKING:
    from rebaser_server.settings.settings import Settings

_GRAPH: Final = """\
# Values that are set, and values that are computed from them.

[functions]
add_tax = {python = "$name-add_tax"} # an entry point of pyproject.toml

[sources]
net = 100
rate = 0.19

[values]
gross = {function = "add_tax", inputs = {net = "net", rate = "rate"}}
"""

_FUNCTIONS: Final = '''\
"""Functions that compute values: plain functions of JSON values."""


def add_tax(*, net: float, rate: float) -> float:
    """What a customer pays.

    Raises:
        ValueError: the rate is negative; the value fails with this message.
    """
    if rate < 0:
        raise ValueError(f"a tax rate of {rate}")
    return round(net * (1 + rate), 2)
'''

_TEST: Final = '''\
"""Functions are tested without Rebaser."""

import unittest

from ${name}_functions import add_tax


class AddTaxTest(unittest.TestCase):
    def test_tax_is_added_and_rounded_to_cents(self) -> None:
        self.assertEqual(add_tax(net=9.99, rate=0.19), 11.89)

    def test_a_negative_rate_is_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "a tax rate of -1"):
            add_tax(net=100, rate=-1)


if __name__ == "__main__":
    unittest.main()
'''

_DISTRIBUTION: Final = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$name-functions"
version = "1"
requires-python = ">=3.11"

[project.entry-points."rebaser.functions"]
$name-add_tax = "${name}_functions:add_tax"

[tool.hatch.build.targets.wheel]
only-include = ["${name}_functions.py"]
"""


def project_name(directory: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", directory.lower()).strip("_")
    return name if name[:1].isalpha() else f"project_{name}".rstrip("_")


def project_files(name: str) -> dict[str, str]:
    templates = {
        "graph.toml": _GRAPH,
        f"{name}_functions.py": _FUNCTIONS,
        f"test_{name}_functions.py": _TEST,
        "pyproject.toml": _DISTRIBUTION,
    }
    return {path: Template(text).substitute(name=name) for path, text in templates.items()}


_NOT_IN_SCRIPTS: Final = re.compile(r'["$`\\\t\n]')
"""Characters of a path that pip does not quote in a script's first line: it may not start."""
_MODULES: Final = {"rebaser": "rebaser_server", "pip": "pip"}
"""Command → the module that Python runs in place of such a script."""


def files_of(directory: Path) -> dict[str, str]:
    return project_files(project_name(directory.absolute().name))


async def write_project(_: "Settings", arguments: argparse.Namespace) -> None:
    directory: Path = arguments.directory
    files, steps = files_of(directory), _next_steps(directory)
    _write(directory, files)
    say_result(
        {"directory": str(directory), "files": [*files], "next": steps},
        f"{directory} has {', '.join(files)}. Next:",
        *(f"  {step}" for step in steps),
        "After a change of a function:",
        *(f"  {step}" for step in _after_a_change(directory)),
        as_json=arguments.json,
    )


def _write(directory: Path, files: dict[str, str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with (directory / path).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UnusableInput(
            f"{error.filename or directory}: {error.strerror}; give a directory to write into"
        ) from error


def _next_steps(directory: Path) -> list[str]:
    """Commands in their order; text behind a # is for people."""
    shop, rebaser = project_name(directory.absolute().name), _command("rebaser")
    steps = [
        f"{_command('python', 'python3')} -m unittest",
        f"{_command('pip', 'pip3')} install .",
        f"{rebaser} up    # in a terminal of its own; if it runs already, again after Ctrl-C",
        f"{rebaser} workspaces create {shop}",
        f"{rebaser} load {shop} graph.toml --yes --wait",
        f"{rebaser} values {shop}",
    ]
    return steps if directory == Path() else [f"cd {shlex.quote(str(directory))}", *steps]


def _after_a_change(directory: Path) -> list[str]:
    shop, rebaser = project_name(directory.absolute().name), _command("rebaser")
    return [
        f"{_command('pip', 'pip3')} install .",
        f"{rebaser} up    # after Ctrl-C",
        f"{rebaser} dvu run {shop} gross --wait",
    ]


def _command(*names: str) -> str:
    """The first of these commands that this environment has.

    It is named by its path unless a shell finds it by name.
    """
    for name in names:
        own = Path(sys.executable).with_name(name)
        if own.exists():
            if names[0] in _MODULES and _NOT_IN_SCRIPTS.search(str(own)):
                return f"{shlex.quote(sys.executable)} -m {_MODULES[names[0]]}"
            return name if shutil.which(name) == str(own) else shlex.quote(str(own))
    return names[-1]
