"""`rebaser load`: make a change set as a file describes it."""

import argparse
import json
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from rebaser_client.display import table_text
from rebaser_client.draft import Computed, Draft
from rebaser_client.errors import InvalidDraft
from rebaser_client.graph_files import SUFFIXES, read_graph_file, read_table_file
from rebaser_client.plan import LoadPlan, PlannedChange
from rebaser_server.commands.support.addresses import find_registered
from rebaser_server.commands.support.arguments import Exit, UnusableInput, confirmed, with_input
from rebaser_server.commands.support.deployment import Deployment, with_deployment
from rebaser_server.commands.support.progress import follow, standing
from rebaser_server.terminal.lines import complain, say, say_json
from rebaser_server.terminal.tables import progress_bar, show


def _read(arguments: argparse.Namespace) -> Draft:
    file: Path = arguments.file
    if not file.is_file() and any(Path(word).is_file() for word in arguments.address):
        words = shlex.join([arguments.action, str(file), *arguments.address])
        raise UnusableInput(f"{file} is no file; the file stands last: `rebaser {words}`")
    if not (file.exists() or file.suffix or arguments.address):
        raise UnusableInput(f"name a file, too: `rebaser load {shlex.quote(str(file))} FILE`")
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


def _require_sound_queries(draft: Draft) -> None:
    """Raise `InvalidDraft` for all SQL that a Rebaser would refuse, by the values' names."""
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
async def load(deployment: Deployment, arguments: argparse.Namespace) -> int:
    named = [*arguments.input.definitions]
    ids = (await find_registered(deployment, arguments)).change_set
    change_set = deployment.client.change_set(*ids)
    with progress_bar("compare with the change set"):
        plan = await change_set.plan(arguments.input, prune=arguments.prune)
    if not plan or arguments.dry_run or not arguments.yes:
        _show_plan(plan, as_json=arguments.json)
    if arguments.dry_run:
        return Exit.OK
    if not plan:
        if not arguments.wait:
            return Exit.OK
        return await standing(deployment, ids, named, as_json=arguments.json)
    if not arguments.yes and not await confirmed("Enqueue this?"):
        complain("not enqueued")
        return Exit.FAILED
    await change_set.upload(plan)
    return await follow(
        deployment,
        ids,
        plan.batch(),
        as_json=arguments.json,
        computed=arguments.wait,
        strict=True,  # the file asks for all of it
        named=named,
    )


_LISTED_CHANGES: Final = 40

_HEADINGS: Final = {
    "name": "value",
    "change": "what",
    "part": "of it",
    "before": "in the change set",
    "after": "in the file",
}


def _show_plan(plan: LoadPlan, *, as_json: bool) -> None:
    if as_json:
        changes = [_plain_change(change) for change in plan.changes]
        warned = {"warnings": list(plan.warnings)} if plan.warnings else {}
        say_json({"changes": changes, "unchanged": plan.unchanged, **warned})
        return
    if not plan:
        say(f"nothing differs: {plan.summary()}")
        return
    rows = [
        _plain_change(change)
        | {
            "before": plan.text(change.before) or _text(change.before),
            "after": plan.text(change.after) or _text(change.after),
        }
        for change in plan.changes[:_LISTED_CHANGES]
    ]
    show(rows, _HEADINGS, nothing="nothing differs")
    more = len(plan.changes) - _LISTED_CHANGES
    say(*([f"and {more:,} more"] if more > 0 else []), plan.summary(), *plan.warnings)


def _plain_change(change: PlannedChange) -> dict[str, Any]:
    return {
        "name": change.name,
        "change": change.change,
        "part": change.what,
        "before": change.before,
        "after": change.after,
    }


def _text(side: Any) -> str | None:
    """A side as people read it: text in quotes if it would read like another value."""
    if side is None or (isinstance(side, str) and not _reads_like_json(side)):
        return side
    return table_text(side) or json.dumps(side, ensure_ascii=False)


def _reads_like_json(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("", "null", "true", "false") or text[:1] in ('"', "[", "{")
    return True
