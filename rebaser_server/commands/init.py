"""`rebaser init`: write a small project to begin with."""

import argparse
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import add_command
from rebaser_server.commands.support.project_files import project_files, project_name
from rebaser_server.terminal.lines import say, say_json

if TYPE_CHECKING:
    from rebaser_server.settings.settings import Settings

_NOT_IN_SCRIPTS: Final = re.compile(r'["$`\\\t\n]')
"""Characters of a path that pip does not quote in a script's first line: it may not start."""
_MODULES: Final = {"rebaser": "rebaser_server", "pip": "pip"}
"""Command → the module that Python runs in place of such a script."""


def add(commands: Any) -> None:
    """Declare the command."""
    init = add_command(
        commands,
        "init",
        _init,
        about="write a small project: a graph, a function that computes a value, and its test",
        validate=_find_obstacle,
    )
    init.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path(),
        help="directory to write it into; made if it does not exist (default: .)",
    )


def _find_obstacle(arguments: argparse.Namespace) -> str | None:
    directory: Path = arguments.directory
    taken = [path for path in _files(directory) if (directory / path).exists()]
    if taken:
        return f"{directory} has {', '.join(taken)} already: give another directory"
    for each in (directory, *directory.parents):
        if each.exists():
            return None if each.is_dir() else f"{each} is a file: give a directory, or a new name"
    return None


def _files(directory: Path) -> dict[str, str]:
    return project_files(project_name(directory.absolute().name))


async def _init(_: "Settings", arguments: argparse.Namespace) -> None:
    directory: Path = arguments.directory
    files, steps = _files(directory), _next_steps(directory)
    _write(directory, files)
    if arguments.json:
        say_json({"directory": str(directory), "files": [*files], "next": steps})
    else:
        say(f"{directory} has {', '.join(files)}. Next:", *(f"  {step}" for step in steps))
        say("After a change of a function:", *(f"  {step}" for step in _after_a_change(directory)))


def _write(directory: Path, files: dict[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        with (directory / path).open("x", encoding="utf-8") as file:
            file.write(text)


def _next_steps(directory: Path) -> list[str]:
    """Commands in the order in which they are given; what follows a # is for people."""
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
    """The first that this environment has; by its path if a shell finds none, or another one."""
    for name in names:
        own = Path(sys.executable).with_name(name)
        if own.exists():
            if names[0] in _MODULES and _NOT_IN_SCRIPTS.search(str(own)):
                return f"{shlex.quote(sys.executable)} -m {_MODULES[names[0]]}"
            return name if shutil.which(name) == str(own) else shlex.quote(str(own))
    return names[-1]
