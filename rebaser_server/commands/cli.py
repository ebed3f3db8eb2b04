"""`rebaser`: from arguments to a command, and from how the command ends to an exit code."""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Final

from rebaser_server.commands import (
    change_sets,
    checkpoint,
    completion,
    dead_letters,
    doctor,
    dvu,
    enqueue,
    history,
    init,
    load,
    pause,
    queue,
    serve,
    train,
    use,
    values,
    watch,
    why,
    workspaces,
)
from rebaser_server.commands.support.arguments import make_group, too_many_addresses
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.commands.support.parser import Parser, PrintText
from rebaser_server.terminal import lines

_SUBJECTS: Final = (
    init,
    serve,
    use,
    enqueue,
    load,
    values,
    workspaces,
    change_sets,
    history,
    why,
    queue,
    watch,
    dvu,
    pause,
    checkpoint,
    dead_letters,
    doctor,
    train,
)
"""In the order in which `rebaser --help` lists their commands; `completion` is the last."""

GROUP: Final = "rebaser.commands"
"""Entry points in this group add commands: each names a function as `add` of these modules."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. Logs go to stderr, results to stdout."""
    lines.prepare()
    try:
        arguments, unknown = build_parser().parse_known_args(argv)
        if unknown:
            arguments.parser.refuse(unknown)
        if arguments.handler is None:
            arguments.parser.print_help()
            return Exit.OK
        problem = too_many_addresses(arguments) or arguments.validate(arguments)
        if problem is not None:
            arguments.parser.error(problem)
        # NATS, pydantic and the settings take a second to import; what ended above needs none.
        from rebaser_server.commands.support.execution import execute

        return execute(arguments)
    except BrokenPipeError:
        lines.close()
        return Exit.OK
    except KeyboardInterrupt:  # during an import
        return Exit.INTERRUPTED


def build_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="rebaser",
        description="Rebaser applies the updates of each change set in order, once, "
        "and recomputes the values that depend on them.",
        epilog="REBASER_* variables are the settings; `rebaser settings` shows those in force.",
    )
    parser.add_argument(
        "--version",
        action=PrintText,
        nargs=0,
        text=_version,
        help="print the version of Rebaser and of Python, and exit",
    )
    commands = make_group(parser)
    for subject in _SUBJECTS:
        subject.add(commands)
    for installed in sorted(entry_points(group=GROUP)):
        installed.load()(commands)
    completion.add(commands, parser)
    return parser


def _version(_: object) -> str:
    import platform
    from importlib.metadata import version

    return f"rebaser {version('rebaser')} (Python {platform.python_version()})"
