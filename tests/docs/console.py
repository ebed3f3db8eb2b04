"""What pages show as typed and answered: found, run, and compared or written anew.

A block is fenced as `console`; its lines that begin with `$ ` are commands, the others what
they print. A fence with a title is a file that later commands find. `…` stands for anything in
a line, and alone in a line for any lines. Ids and times differ from run to run, so any will do,
and any numbers after `<!-- numbers differ -->`; an id that a page shows stands, in later commands,
for the one that came.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from rebaser_server.commands import cli

NOT_RUN = "<!-- not run: "
"""Before a block, with the reason: of one that nobody runs."""

DIFFER = "<!-- numbers differ -->"

SETTLES_WITHIN = 60.0
"""Seconds for a change set to go quiet and whatever else becomes true by itself."""

_QUESTIONS = (
    *(
        "doctor",
        "log",
        "queue",
        "values",
        "diff",
        "dead-letters",
        "dvu status",
        "why",
    ),
    *("change-sets list", "change-sets describe", "workspaces list"),
)
_ASKING = tuple(f"rebaser {c}" for c in _QUESTIONS)

_FENCE = re.compile(
    r'^(?P<before>[^\n]*)\n```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)
_ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
_VARIES = re.compile(
    r"(?P<anything>…)"
    r"|(?P<ulid>\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b)"
    r"|(?P<time>\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+00:00)?)"
    r"|(?P<number>\b\d[\d,]*(?:\.\d+)?\b)"
    r"|(?P<space>\s+)"
)
_PATTERNS = {
    "anything": ".*?",
    "ulid": f"({_ULID.pattern})",
    "time": r"\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|\+00:00)?",
    "number": r"\d[\d,]*(?:\.\d+)?",
    "space": r"\s+",
}


@dataclass
class Command:
    """One command of a page and the lines that it is said to print."""

    typed: str
    printed: list[str]
    at: int
    """Offset of the first printed line in the page."""
    numbers_differ: bool = False

    @property
    def asks(self) -> bool:
        """Whether it changes nothing, so that one may ask until all has come to rest."""
        return self.typed.startswith(_ASKING) and not self.typed.startswith("rebaser values set")


@dataclass
class Session:
    """Where the commands of one page run, one after the other."""

    directory: Path
    variables: Mapping[str, str]
    ids: dict[str, str] = field(default_factory=dict)
    """Ids as the page has them, and as they came."""

    def run(self, command: Command) -> list[str]:
        typed = _ULID.sub(lambda found: self.ids.get(found[0], found[0]), command.typed)
        words = shlex.split(typed)
        run = self._rebaser if words[0] == "rebaser" else self._other
        with contextlib.chdir(self.directory):
            said = run(words)
        return [line.rstrip() for line in said.rstrip().splitlines()]

    def _rebaser(self, words: list[str]) -> str:
        """In this process: the command, but for the time that its start takes."""
        said = io.StringIO()
        variables = self._environment()
        heard = contextlib.redirect_stdout(said), contextlib.redirect_stderr(said)
        refusing = contextlib.suppress(SystemExit)  # of the parser, which has said why
        with patch.dict(os.environ, variables, clear=True), heard[0], heard[1], refusing:
            cli.main(words[1:])
        return said.getvalue()

    def _other(self, words: list[str]) -> str:
        how = {"env": self._environment(), "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run(words, stdout=subprocess.PIPE, check=False, timeout=120, **how).stdout

    def _environment(self) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{mine['PATH']}"
        person = {"COLUMNS": "120", "LOGNAME": "ada"}
        return mine | dict(self.variables) | person | {"PATH": path}

    def agrees(self, said: list[str], command: Command) -> bool:
        """Whether a command printed what the page says; what it calls things is taken down."""
        known: list[str] = []
        differ = command.numbers_differ
        pattern = "".join(self._line(line, known, differ) for line in command.printed)
        found = re.fullmatch(pattern, "".join(f"{line}\n" for line in said))
        if found:
            self.ids |= zip(known, found.groups(), strict=True)
        return bool(found)

    def _line(self, line: str, known: list[str], differ: bool) -> str:
        if line.strip() == "…":
            return r"(?:.*\n)*?"
        made, end = "", 0
        for varying in _VARIES.finditer(line):
            made += re.escape(line[end : varying.start()])
            kind, end = varying.lastgroup or "", varying.end()
            if kind == "ulid" and varying[0] in self.ids:
                made += self.ids[varying[0]]
            elif kind == "ulid" and varying[0] in known:
                made += f"\\{known.index(varying[0]) + 1}"
            elif kind == "number" and not differ:
                made += re.escape(varying[0])
            else:
                if kind == "ulid":
                    known.append(varying[0])
                made += _PATTERNS[kind]
        return made + re.escape(line[end:]) + "\n"

    def learn(self, said: list[str]) -> None:
        """As they came in lines that a page is going to show from now on."""
        self.ids |= {each: each for each in _ULID.findall("\n".join(said))}


def shown(page: str) -> Iterator[str]:
    """What is typed on a page, also what nobody runs."""
    for fence in _FENCE.finditer(page):
        if fence["kind"] == "console":
            yield from (command.typed for command in _commands(fence["body"], 0))


def steps(page: str, write: Callable[[str, str], None]) -> Iterator[Command]:
    """The commands of a page, in order; files are written on the way."""
    for fence in _FENCE.finditer(page):
        if fence["title"]:
            write(fence["title"], fence["body"])
        elif fence["kind"] == "console" and not fence["before"].startswith(NOT_RUN):
            for command in _commands(fence["body"], fence.start("body")):
                command.numbers_differ = fence["before"] == DIFFER
                yield command


def _commands(body: str, offset: int) -> Iterator[Command]:
    command = None
    for line in body.splitlines(keepends=True):
        offset += len(line)
        if line.startswith("$ "):
            if command:
                yield command
            command = Command(line.removeprefix("$ ").rstrip(), [], offset)
        elif command is not None and command.typed.endswith("\\") and not command.printed:
            command = Command(f"{command.typed[:-1]} {line.strip()}", [], offset)
        elif command is not None:
            command.printed.append(line.rstrip())
    if command:
        yield command


def written_anew(page: str, session: Session) -> tuple[str, list[str]]:
    """The page with what its commands print now, and what of it was wrong."""
    made, end, wrong = "", 0, []

    def write(name: str, text: str) -> None:
        file = session.directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    for command in steps(page, write):
        said = session.run(command)
        until = time.monotonic() + SETTLES_WITHIN
        while not session.agrees(said, command) and command.asks and time.monotonic() < until:
            said = session.run(command)
        if not session.agrees(said, command):
            wrong.append(f"$ {command.typed}\n" + "\n".join(said))
            session.learn(said)
            made += page[end : command.at] + "".join(f"{line}\n" for line in said)
            end = command.at + sum(len(line) + 1 for line in command.printed)
    return made + page[end:], wrong
