"""The parser of commands: options anywhere, default commands, and errors that name what is near.

Nothing here imports NATS, pydantic or the settings: `rebaser --help` does without them.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Never

from rebaser_core.errors import offer
from rebaser_server.terminal.lines import say_script, visible

_HELP: Final = ("-h", "--help")

_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
"""A number, which is no option; argparse's own pattern has no exponents."""


class Parser(argparse.ArgumentParser):
    """Takes options anywhere among the arguments; a group of commands may have a default one."""

    default_command: str | None = None
    """The command of the group that runs if the first argument names none, or there is none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._negative_number_matcher = _NEGATIVE

    def error(self, message: str) -> Never:
        super().error(visible(message))

    def refuse(self, unknown: Sequence[str]) -> Never:
        """End with the error that these words of a command line mean nothing to the command."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:
            self.error(f"too many arguments: {' '.join(unknown)}")
        near = offer(options[0], self._option_string_actions)
        self.error(
            f"there is no option {options[0]!r}{near}; `{self.prog} --help` lists all. "
            "Behind -- no word is an option"
        )

    def command_of(self, words: Sequence[str]) -> tuple["Parser", list[str]]:
        """The parser of the command that a line of words names, and its arguments so far."""
        commands: dict[str, Parser] = next((each.choices for each in self._groups()), {})
        if words and words[0] in commands:
            return commands[words[0]].command_of(words[1:])
        if commands and self.default_command:
            return commands[self.default_command].command_of(words)
        return self, [word for word in words if not word.startswith("-")]

    def positionals(self) -> set[str]:
        """The arguments of the command that are no options."""
        return {action.dest for action in self._actions if not action.option_strings}

    def _groups(self) -> list[Any]:
        return [action for action in self._actions if isinstance(action.choices, dict)]

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        groups = self._groups()
        if groups:
            words = list(sys.argv[1:] if args is None else args)
            known = (*_HELP, *(groups[0].choices or ()))
            if self.default_command and not (words and words[0] in known):
                words.insert(0, self.default_command)
            elif words and not words[0].startswith("-") and words[0] not in known:
                self.error(
                    f"there is no command {words[0]!r}{offer(words[0], groups[0].choices)}; "
                    f"`{self.prog} --help` lists all"
                )
            return super().parse_known_args(words, namespace)
        if getattr(self, "_intermixed", False):  # parse_known_intermixed_args calls this method
            return super().parse_known_args(args, namespace)
        self._intermixed = True
        try:
            parsed = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixed = False
        for (
            action
        ) in self._actions:  # argparse takes a second -- for an argument, and then for none
            one = not action.option_strings and action.nargs is None
            if one and getattr(parsed[0], action.dest, None) == []:
                self.error(f"the following arguments are required: {action.metavar or action.dest}")
        return parsed


class PrintText(argparse.Action):
    """An option or argument that prints `text` of its value and exits, as `--help` does."""

    def __init__(self, *, text: Callable[[Any], str], **options: Any) -> None:
        super().__init__(**options)
        self._text = text

    def __call__(
        self, parser: argparse.ArgumentParser, _: argparse.Namespace, value: Any, *__: Any
    ) -> None:
        say_script(self._text(value))
        parser.exit()
