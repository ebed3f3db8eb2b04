"""The arguments of commands: declared, parsed, read from files, and asked of a person.

A command is declared with its handler, and with the arguments that several commands take. The
parser takes options anywhere and default commands, and its errors name similar words. Input is read
from files, stdin and arguments before the command connects to NATS. `Exit` has the exit codes, for
supervisors and scripts. After `--timeout` a command ends; requests that it sent go on.

Nothing here imports NATS, pydantic or the settings: `rebaser --help` does without them.
"""

import argparse
import functools
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, Never

from rebaser_core.errors import RebaserError, offer
from rebaser_server.terminal.lines import ask, say_script, visible

if TYPE_CHECKING:
    from rebaser_core.ids import RequestId
    from rebaser_server.settings.settings import Settings

_HELP: Final = ("-h", "--help")

_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
"""Pattern of a number, which is no option; argparse's own pattern has no exponents."""


class Parser(argparse.ArgumentParser):
    """A parser that takes options anywhere; a group of commands may have a default one."""

    default_command: str | None = None
    """Command of the group that runs if the first argument names none, or there is none."""
    sections: Mapping[str, Sequence[str]] | None = None
    """Titles under which the help lists commands; None: it lists them as argparse does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._negative_number_matcher = _NEGATIVE

    def format_help(self) -> str:
        """Return the help; with `sections`, a line for each command, and the epilog as it is."""
        if self.sections is None:  # argparse gives the placeholder of commands a line
            return super().format_help().replace("\n  COMMAND\n", "\n", 1)
        [group] = self._groups()
        lines_of = group._choices_actions  # noqa: SLF001 - argparse tells of them nowhere else
        listed = {each.dest: each.help for each in lines_of}
        others = listed.keys() - {name for names in self.sections.values() for name in names}
        width = max(map(len, listed))
        parts = [
            f"usage: {self.prog} [-h] [--version] COMMAND ...",
            fill(self.description or "", 80),
        ]
        for title, names in {**self.sections, "more commands": sorted(others)}.items():
            lines = [f"  {name:<{width}}  {listed[name]}" for name in names if name in listed]
            if lines:
                parts.append("\n".join([f"{title}:", *lines]))
        return "\n\n".join([*parts, self.epilog or ""]) + "\n"

    def flag(self, name: str, about: str) -> None:
        """Declare an option without a value."""
        self.add_argument(name, action="store_true", help=about)

    def commit(self, name: str, about: str) -> None:
        """Declare an option that takes the number of a commit."""
        self.add_argument(name, type=commit_number, metavar="COMMIT", help=about)

    def error(self, message: str) -> Never:
        super().error(visible(message))

    def refuse(self, unknown: Sequence[str]) -> Never:
        """End with an error: these words of a command line mean nothing to the command."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            self.error(f"too many arguments: {' '.join(unknown)}")
        if options[0] in self._option_string_actions:
            self.error(f"options stand behind the command: `{self.prog} {options[0]}`")
        near = offer(options[0], self._option_string_actions)
        self.error(
            f"there is no option {options[0]!r}{near}; `{self.prog} --help` lists all. "
            "Behind -- no word is an option"
        )

    def _refuse_option_before_command(self, words: Sequence[str]) -> None:
        """End with an error if an option stands before a command of the group."""
        if not words or not words[0].startswith("-"):
            return
        if words[0].partition("=")[0] in ("--", *self._option_string_actions):
            return
        known = self.command_of([])[0]._option_string_actions  # noqa: SLF001 - a parser of ours
        for at, (before, word) in enumerate(pairwise(words), 1):
            option = known.get(before)
            if word.startswith("-") or (option is not None and option.nargs != 0):
                continue  # an option, or the value of one
            if word in self._commands():
                self.command_of(words[at:])[0].refuse(words[:at])
            if self.default_command:  # it takes this word for an argument
                return

    def command_of(self, words: Sequence[str]) -> tuple["Parser", list[str]]:
        """Return the parser of the command that a line of words names, and its arguments so far."""
        commands = self._commands()
        if words and words[0] in commands:
            return commands[words[0]].command_of(words[1:])
        if commands and self.default_command:
            return commands[self.default_command].command_of(words)
        return self, [word for word in words if not word.startswith("-")]

    def positionals(self) -> set[str]:
        return {action.dest for action in self._actions if not action.option_strings}

    def _groups(self) -> list[Any]:
        return [action for action in self._actions if isinstance(action.choices, dict)]

    def _commands(self) -> "dict[str, Parser]":
        return next((each.choices for each in self._groups()), {})

    def _longer(self, word: str) -> str:
        """Return the end of an error message about a word that only names a command of a group."""
        found = [
            f"`{parser.prog} {word}`"
            for parser in self._commands().values()
            if parser.command_of([word])[0] is not parser.command_of([])[0]
        ]
        return f"; there is {' and '.join(found)}" if found else ""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        commands = self._commands()
        if commands:
            words = list(sys.argv[1:] if args is None else args)
            self._refuse_option_before_command(words)
            known = (*_HELP, *commands)
            if self.default_command and not (words and words[0] in known):
                words.insert(0, self.default_command)
            elif words and not words[0].startswith("-") and words[0] not in known:
                near = self._longer(words[0]) or offer(words[0], commands)
                self.error(
                    f"there is no command {words[0]!r}{near}; `{self.prog} --help` lists all"
                )
            options = self._option_string_actions
            if words and words[0].startswith("-") and not set(words) & {*known, *options}:
                near = offer(words[0], options)
                self.error(
                    f"there is no option {words[0]!r}{near}; options stand behind the command, and "
                    "REBASER_NATS__URL is the address of NATS"
                )
            return super().parse_known_args(words, namespace)
        if getattr(self, "_intermixed", False):  # parse_known_intermixed_args calls this method
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            parsed = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False
        for action in self._actions:
            # argparse takes a second -- for an argument, and then for none
            one = not action.option_strings and action.nargs is None
            if one and getattr(parsed[0], action.dest, None) == []:
                self.error(f"the following arguments are required: {action.metavar or action.dest}")
        return parsed


class PrintText(argparse.Action):
    """An option or argument that prints a text made from its value and exits, as `--help` does.

    The values that it `passes` are taken as any argument is.
    """

    def __init__(
        self, *, text: Callable[[Any], str], passes: Sequence[str] = (), **options: Any
    ) -> None:
        super().__init__(**options)
        self._text = text
        self._passes = passes

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        if value in self._passes:
            setattr(namespace, self.dest, value)
            return
        say_script(self._text(value))
        parser.exit()


_WORDS: Final = 2
"""Maximum number of words of an address: workspace and change set."""

ADDRESS: Final = "the change set: WORKSPACE for its head, or WORKSPACE/BRANCH; ids do, too"
IN_USE: Final = "the one in REBASER_ADDRESS"

_COMPLETERS: Final = {
    "bash": "_rebaser_words",
    "zsh": "_rebaser_words",
    "fish": "(rebaser completion names -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)",
    "preamble": {
        "bash": """_rebaser_words() {
  rebaser completion names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | grep -v " "
}""",
        "zsh": """_rebaser_words() {
  compadd -- ${(f)"$(rebaser completion names -- ${words[2,CURRENT]} 2>/dev/null)"}
}""",
    },
}
"""Code by which each shell asks `rebaser completion` for words; bash would cut words at blanks."""

Handler = Callable[["Settings", argparse.Namespace], Coroutine[Any, Any, int | None]]
"""Function that runs a command. It returns the exit code; None stands for 0."""

Validator = Callable[[argparse.Namespace], str | None]
"""Function that returns the fault of the arguments taken together, or None."""


def add_group(
    commands: Any, name: str, *, about: str, default: str | None = None
) -> "argparse._SubParsersAction[Parser]":
    """Declare a group of commands; `default` is the one that runs if no command is named.

    A group without one prints its help.
    """
    return make_group(commands.add_parser(name, help=about, description=about), default=default)


def make_group(
    parser: Parser, *, default: str | None = None
) -> "argparse._SubParsersAction[Parser]":
    """Let the parser take commands, and print its help if it is given none."""
    parser.default_command = default
    parser.set_defaults(parser=parser, handler=None)
    return parser.add_subparsers(metavar="COMMAND", title="commands")


def add_command(
    commands: Any,
    name: str,
    handler: Handler | str,
    *,
    about: str,
    validate: Validator = lambda _: None,
    json: bool = True,
    csv: bool = False,
) -> Parser:
    """Declare a command, with `--json` unless it prints no result, and `--csv` if it prints rows.

    `handler`: a function, or the name of one below `rebaser_server.commands`, as `load:load`, which
    is imported when the command runs. Arguments to which `validate` objects end the command before.
    """
    parser: Parser = commands.add_parser(name, help=about, description=about)
    parser.set_defaults(parser=parser, handler=handler, validate=validate, action=name)
    forms = parser.add_mutually_exclusive_group() if csv else parser
    if json:
        forms.add_argument("--json", action="store_true", help="print the result as JSON")
    if csv:
        forms.add_argument("--csv", action="store_true", help="print rows as CSV")
    return parser


def request_id(text: str) -> "RequestId":
    """The type of an argument: a request's ULID."""
    from rebaser_core.ids import RequestId

    try:
        return RequestId.from_str(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a ULID") from None


def whole_number(text: str) -> int:
    """The type of an argument: a whole number above 0."""
    return _number(text, 1, "a whole number above 0")


def commit_number(text: str) -> int:
    """The type of an argument: the number of a commit."""
    return _number(text, 0, "the number of a commit, as in `rebaser log`")


LAST: Final = "last"
"""Word in place of a commit's number: the latest commit by which a request changed something."""


def commit_or_last(text: str) -> int | str:
    """The type of an argument: the number of a commit, or `LAST`."""
    if text == LAST:
        return text
    return _number(text, 0, f"the number of a commit, as in `rebaser log`, or {LAST!r}")


def _number(text: str, least: int, what: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
    return int(text)


_LONGEST: Final = 200
"""Maximum number of characters of a name, as a record takes it."""


def new_name(text: str) -> str:
    """The type of an argument: a name for a workspace or a branch."""
    if not 0 < len(text) <= _LONGEST or min(text) < " ":
        raise argparse.ArgumentTypeError(
            f"expected a name of 1 to {_LONGEST} characters on one line, got {text!r}"
        )
    return text


def add_address(
    parser: argparse.ArgumentParser, *, about: str = ADDRESS, default: str = IN_USE
) -> None:
    """Declare `address`: one word, or two that are workspace and change set; none if left out."""
    _completed(
        parser.add_argument(
            "address", nargs="*", metavar="ADDRESS", help=f"{about} (default: {default})"
        )
    )


def add_address_and_names(parser: argparse.ArgumentParser, *, about: str) -> None:
    """Declare `address` and, behind it, `name`: any number of words."""
    _completed(
        parser.add_argument(
            "address", nargs="?", metavar="ADDRESS", help=f"{ADDRESS} (default: {IN_USE})"
        )
    )
    _completed(parser.add_argument("name", nargs="*", metavar="NAME", help=about))


def add_workspace(parser: argparse.ArgumentParser) -> None:
    """Declare `workspace`: a word, or None if left out."""
    about = f"name or id of the workspace (default: that of {IN_USE})"
    _completed(parser.add_argument("workspace", nargs="?", metavar="WORKSPACE", help=about))


def add_named(parser: argparse.ArgumentParser, name: str, about: str) -> None:
    """Declare an argument that names a workspace or a value."""
    _completed(parser.add_argument(name, metavar=name.upper(), help=about))


def too_many_addresses(arguments: argparse.Namespace) -> str | None:
    """Fault of the number of words of an address."""
    address = getattr(arguments, "address", None)
    if isinstance(address, list) and len(address) > _WORDS:
        return f"give one ADDRESS, or the ids of WORKSPACE and CHANGE_SET: {' '.join(address)}"
    return None


def _completed(argument: argparse.Action) -> None:
    vars(argument)["complete"] = _COMPLETERS  # an attribute of shtab's


STDIN: Final = "-"
"""Argument for stdin in the place of a file or a value."""


class UnusableInput(RebaserError):
    """The input of a command cannot be used; the message says why. Nothing was sent."""


def with_input(read: Callable[[argparse.Namespace], Any]) -> Callable[[Handler], Handler]:
    """Read `arguments.input` from the arguments with `read`, then run the handler.

    Put it above `with_deployment`: input that is wrong is reported without a server. Errors
    of the operating system become `UnusableInput` with the file's name.
    """

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def reading(settings: Any, arguments: argparse.Namespace) -> int | None:
            try:
                arguments.input = read(arguments)
            except OSError as error:
                where = "" if error.filename is None else f"{error.filename}: "
                raise UnusableInput(f"{where}{error.strerror or error}") from error
            return await handler(settings, arguments)

        return reading

    return decorate


def read_text(file: Path) -> str:
    """The text of the file, or of stdin, without a byte order mark.

    Raises:
        UnusableInput: it is not UTF-8, or too large.
        OSError: it cannot be read.
    """
    from rebaser_client import documents
    from rebaser_client.errors import InvalidDraft

    try:
        if str(file) != STDIN:
            return documents.read_text(file)
        if (octets := getattr(sys.stdin, "buffer", None)) is None:  # closed, or text in a test
            return "" if sys.stdin is None else sys.stdin.read()
        return documents.decode(octets.read())
    except InvalidDraft as error:
        raise UnusableInput(f"{file}: {error}") from error


async def confirmed(question: str) -> bool:
    import asyncio
    from concurrent.futures import Future
    from threading import Thread

    answer: Future[str] = Future()
    answer.set_running_or_notify_cancel()

    def read() -> None:
        try:
            answer.set_result(ask(f"{question} [y/N]"))
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
            answer.set_exception(error)

    # A thread of the loop's own would keep the process until Enter after Ctrl-C or --timeout.
    Thread(target=read, daemon=True).start()
    return (await asyncio.wrap_future(answer)).lower() in ("y", "yes")


async def refused_at_terminal(question: str, arguments: argparse.Namespace) -> bool:
    """Whether a person at a terminal says no; `--yes` and `--json` leave the question out.

    Programs are not asked, since the command can be undone.
    """
    if arguments.yes or arguments.json or not sys.stdin.isatty():
        return False
    return not await confirmed(question)


def unless_confirmed(**options: str) -> Validator:
    """Check that a command that asks takes `--json`, for programs, only with one of the options."""

    def validate(arguments: argparse.Namespace) -> str | None:
        if not arguments.json or any(getattr(arguments, name) for name in options):
            return None
        return f"with --json Rebaser asks no question: give {' or '.join(options.values())}"

    return validate


class Exit(IntEnum):
    """Exit code of a command; the reason is on stderr."""

    OK = 0
    FAILED = 1
    REPAIRABLE = 3  # `rebaser doctor` found what it can repair, and nothing else
    DAMAGED = 4  # a finding needs a person
    BAD_SETTINGS = 2  # argparse's code for bad arguments; restarting does not help
    VALUES_FAILED = 5  # committed and computed, and values that depend on it failed
    CORRECTED = 6  # committed, but all updates were left out; with --strict, any was corrected
    NOT_IN_TIME = 7  # `--timeout` is over; what was sent goes on
    NO_NATS = 69  # EX_UNAVAILABLE; restarting later helps
    INTERRUPTED = 130  # a shell's code for Ctrl-C


_COMPUTED: Final = "wait until the values that depend on it are computed"


class NotInTime(RebaserError):
    """The awaited event did not happen within the command's `--timeout`."""


def add_wait(parser: Parser, about: str = _COMPUTED) -> None:
    """Declare `--wait` and `--timeout`."""
    parser.flag("--wait", about)
    add_timeout(parser)


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="SECONDS",
        help="wait no longer than that, and end with exit code 7 (default: no limit)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


async def limited(command: Coroutine[Any, Any, int | None], seconds: float | None) -> int | None:
    """Run a command, for `seconds` at most.

    Raises:
        NotInTime: the command had not ended by then, and was cancelled.
    """
    if seconds is None:
        return await command
    import asyncio

    work = asyncio.ensure_future(command)
    try:
        done, _ = await asyncio.wait([work], timeout=seconds)
    finally:
        work.cancel()
    if done:
        return work.result()
    await asyncio.wait([work])
    raise NotInTime(f"timeout of {seconds:g} s is over; requests that were sent are not taken back")
