"""`rebaser load`: make a change set as a file describes it."""

import argparse
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebaser_server.commands.support.arguments import (
    Exit,
    UnusableInput,
    add_address,
    add_command,
    add_wait,
    confirmed,
    unless_confirmed,
    with_deployment,
    with_input,
)
from rebaser_server.terminal.lines import complain

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle
    from rebaser_client.draft import Draft
    from rebaser_client.plan import LoadPlan
    from rebaser_server.commands.support.deployment import Deployment


def add(commands: Any) -> None:
    """Declare the command."""
    load = add_command(
        commands,
        "load",
        _load,
        about="show what differs from a file, ask, and make the change set so",
        validate=unless_confirmed(yes="--yes", dry_run="--dry-run"),
    )
    add_address(load)
    load.add_argument(
        "file",
        type=Path,
        help="file with the graph, as `rebaser init` writes one: YAML, JSON or TOML; or with a "
        "table whose rows are values: .csv, .parquet or .jsonl",
    )
    load.add_argument(
        "--map",
        type=_meaning,
        action="append",
        default=[],
        metavar="COLUMN=MEANING",
        help="take a column of a table as `name`, `value`, `json`, `function` or `inputs`; with "
        "nothing behind the =, leave it out; may be repeated (default: each name is the meaning)",
    )
    load.add_argument(
        "--prune", action="store_true", help="remove all values that the file does not name"
    )
    load.add_argument("--dry-run", action="store_true", help="show what differs, and end")
    load.add_argument("--yes", action="store_true", help="enqueue it without showing and asking")
    add_wait(load)


def _meaning(text: str) -> tuple[str, str]:
    column, equals, means = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"expected COLUMN=MEANING (for example sku=name), got {text!r}"
        )
    return column, means


def _read(arguments: argparse.Namespace) -> "Draft":
    from rebaser_client.graph_files import SUFFIXES, read_graph_file, read_table_file
    from rebaser_server.terminal.tables import progress_bar

    file: Path = arguments.file
    if not file.is_file() and any(Path(word).is_file() for word in arguments.address):
        words = shlex.join([arguments.action, str(file), *arguments.address])
        raise UnusableInput(f"{file} is no file; the file stands last: `rebaser {words}`")
    if not file.exists():
        raise UnusableInput(
            f"{file}: No such file or directory; `rebaser init` writes a file to begin with"
        )
    more = [word for word in arguments.address[1:] if Path(word).is_file()]
    if more:
        raise UnusableInput(
            f"one file is loaded at a time, and this names {' and '.join([*more, str(file)])}: "
            "load one after the other, which keeps what each describes"
        )
    with progress_bar(f"read {file.name}"):
        if file.suffix.lower() in SUFFIXES:
            return read_table_file(file, dict(arguments.map))
        if arguments.map:
            raise UnusableInput(f"{file}: --map is for tables; a graph file names columns itself")
        draft = read_graph_file(file, _judge)
        _require_sound_queries(draft)
        return draft


def _require_sound_queries(draft: "Draft") -> None:
    """Raise `InvalidDraft` for all SQL that a Rebaser would refuse, by the values' names."""
    from rebaser_client.draft import Computed
    from rebaser_client.errors import InvalidDraft

    mistakes = []
    for name, definition in draft.definitions.items():
        if isinstance(definition, Computed) and definition.function.runtime == "sql":
            try:
                _judge(definition.function.code, definition.inputs)
            except InvalidDraft as error:
                mistakes.append(f"{name!r}: {error}")
    if mistakes:
        raise InvalidDraft("\n".join(mistakes))


def _judge(code: str, arguments: Collection[str]) -> None:
    """Raise `InvalidDraft` for SQL that a Rebaser would refuse, if the judge is installed here."""
    from rebaser_client.errors import InvalidDraft

    try:
        from rebaser_server.compute.functions.sql import SqlRefused
        from rebaser_server.compute.tables import require_sound
    except ImportError:  # the extra `cli`
        return
    try:
        require_sound(code, arguments)
    except SqlRefused as error:
        raise InvalidDraft(str(error)) from error


@with_input(_read)
@with_deployment
async def _load(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.history import show_plan
    from rebaser_server.commands.render.progress import follow, standing

    named = [*arguments.input.definitions]
    change_set, plan = await _compare(deployment, arguments)
    if not plan or arguments.dry_run or not arguments.yes:
        show_plan(plan, as_json=arguments.json)
    if arguments.dry_run:
        return Exit.OK
    if not plan:
        if not arguments.wait:
            return Exit.OK
        ids = await change_set.ids()
        return await standing(deployment, ids, named, as_json=arguments.json)
    if not arguments.yes and not await confirmed("Enqueue this?"):
        complain("not enqueued")
        return Exit.FAILED
    await change_set.upload(plan)
    return await follow(
        deployment,
        await change_set.ids(),
        plan.batch(),
        as_json=arguments.json,
        computed=arguments.wait,
        strict=True,  # the file asks for all of it
        named=named,
    )


async def _compare(
    deployment: "Deployment", arguments: argparse.Namespace
) -> "tuple[ChangeSetHandle, LoadPlan]":
    from rebaser_server.commands.support.addresses import find_registered
    from rebaser_server.terminal.tables import progress_bar

    found = await find_registered(deployment, arguments)
    change_set = deployment.client.change_set(*found.change_set)
    with progress_bar("compare with the change set"):
        return change_set, await change_set.plan(arguments.input, prune=arguments.prune)
