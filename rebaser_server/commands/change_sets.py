"""`rebaser workspaces`, `change-sets` and `diff`: fork head, compare, apply or abandon."""

import argparse
import asyncio
from typing import Any, Final

from rebaser_server.commands.support.arguments import runs, ulid
from rebaser_server.commands.support.exit_codes import Exit
from rebaser_server.settings.settings import Settings
from rebaser_server.terminal.lines import ask, complain

_ANSWERS: Final = {"delete": ("--yes",), "apply": ("--yes", "--reviewed DIGEST")}


def add(commands: Any) -> None:
    """Declare the commands."""
    workspaces = commands.add_parser("workspaces", help="create, list and delete workspaces")
    ways = workspaces.add_subparsers(required=True, metavar="WHAT")
    listed = ways.add_parser("list", help="show all workspaces")
    created = ways.add_parser("create", help="have a new workspace, with its head")
    created.add_argument("name")
    created.add_argument("--head", help="a change set in use that is to be the head")
    created.add_argument("--workspace", help="the workspace that it is in")
    deleted = ways.add_parser(
        "delete", help="close all its change sets, and drop their data after the retention time"
    )
    deleted.add_argument("workspace", type=_workspace_id, help="a ULID")
    deleted.add_argument("--yes", action="store_true", help="without asking")
    runs(listed, _workspaces)
    runs(created, _create)
    runs(deleted, _delete, complaint=_answer_missing)
    _add_change_sets(commands)

    diff = commands.add_parser("diff", help="show what a branch would change in head")
    _which(diff)
    diff.add_argument("--computed", action="store_true", help="also what is computed otherwise")
    diff.add_argument("--batch", action="store_true", help="only the updates, as a JSON array")
    runs(diff, _diff)


def _add_change_sets(commands: Any) -> None:
    change_sets = commands.add_parser(
        "change-sets", help="list, describe, fork, rename, refresh, apply, abandon, delete"
    )
    ways = change_sets.add_subparsers(required=True, metavar="WHAT")

    listed = ways.add_parser("list", help="show the open change sets of a workspace")
    listed.add_argument("workspace", type=_workspace_id)
    listed.add_argument("--all", action="store_true", help="the closed ones, too")
    runs(listed, _list)

    fork = ways.add_parser("fork", help="have a branch of head, or of another change set")
    fork.add_argument("workspace", type=_workspace_id)
    fork.add_argument("name")
    fork.add_argument("--base", help="name or id of the change set to fork; head")
    fork.add_argument("--commit", type=int, help="as of that commit; the last")
    runs(fork, _fork)

    described = ways.add_parser("describe", help="show all that is registered of a change set")
    _which(described)
    runs(described, _describe)

    rename = ways.add_parser("rename", help="give a change set another name")
    _which(rename)
    rename.add_argument("name")
    runs(rename, _rename)

    refresh = ways.add_parser("refresh", help="have head's changes reach a branch now")
    _which(refresh)
    runs(refresh, _act)

    apply = ways.add_parser("apply", help="show what a branch changes and, if told so, apply it")
    _which(apply)
    apply.add_argument("--yes", action="store_true", help="without showing it and asking")
    apply.add_argument("--reviewed", metavar="DIGEST", help="only the difference of that digest")
    runs(apply, _apply, complaint=_answer_missing)

    for action, what in (
        ("abandon", "close a branch without effect on head"),
        ("delete", "close a branch, and drop its data after the retention time"),
    ):
        way = ways.add_parser(action, help=what)
        _which(way)
        runs(way, _act)


def _workspace_id(text: str) -> Any:
    from rebaser_core.ids import WorkspaceId

    return ulid(WorkspaceId)(text)


def _which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workspace", type=_workspace_id, help="a ULID")
    parser.add_argument("change_set", help="its name or ULID")


def _answer_missing(arguments: argparse.Namespace) -> str | None:
    """A program cannot be asked."""
    if arguments.json and not arguments.yes and not getattr(arguments, "reviewed", None):
        return f"with --json nothing is asked: say {' or '.join(_ANSWERS[arguments.action])}"
    return None


async def _workspaces(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_workspaces

    show_workspaces(await at.client.workspaces.all(), as_json=arguments.json)


async def _create(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_core.ids import ChangeSetId, WorkspaceId
    from rebaser_server.commands.render.change_sets import show_workspaces

    workspace = await at.client.workspaces.create(
        arguments.name,
        workspace_id=arguments.workspace and ulid(WorkspaceId)(arguments.workspace),
        head=arguments.head and ulid(ChangeSetId)(arguments.head),
    )
    show_workspaces([workspace.record], as_json=arguments.json)


async def _delete(at: Any, _: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.change_sets import show_change_sets

    workspaces, which = at.client.workspaces, arguments.workspace
    record = await workspaces.registry.workspace(which)
    if not arguments.yes:
        count = len(await workspaces.change_sets(which, closed=True))
        question = f"Delete {record.name!r} and its {count} change sets?"
        if not await _confirmed(question):
            complain("not deleted")
            return Exit.FAILED
    await workspaces.delete_workspace(which)
    found = await workspaces.change_sets(which, closed=True)
    show_change_sets(found, [None] * len(found), as_json=arguments.json)
    return Exit.OK


async def _confirmed(question: str) -> bool:
    answer = await asyncio.to_thread(ask, f"{question} [y/N]")
    return answer.lower() in ("y", "yes")


async def _list(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.cluster.pauses import PauseBook, paused_since
    from rebaser_server.commands.render.change_sets import show_change_sets

    found = await at.client.workspaces.change_sets(arguments.workspace, closed=arguments.all)
    paused = await PauseBook(at.js, at.subjects).all()
    since = [paused_since(paused, ChangeSet(r.workspace_id, r.change_set_id)) for r in found]
    show_change_sets(found, since, as_json=arguments.json)


async def _fork(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    workspaces = at.client.workspaces
    base = None
    if arguments.base is not None:
        base = (await workspaces.find(arguments.workspace, arguments.base)).change_set_id
    record = await workspaces.fork(
        arguments.workspace,
        arguments.name,
        base=base,
        commit=arguments.commit,
    )
    await workspaces.ready(record.workspace_id, record.change_set_id)
    show_change_set(record, as_json=arguments.json)


async def _describe(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    record = await at.client.workspaces.find(arguments.workspace, arguments.change_set)
    show_change_set(record, as_json=arguments.json)


async def _rename(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    workspaces = at.client.workspaces
    record = await workspaces.find(arguments.workspace, arguments.change_set)
    renamed = await workspaces.rename(record.workspace_id, record.change_set_id, arguments.name)
    show_change_set(renamed, as_json=arguments.json)


async def _act(at: Any, _: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_change_set

    workspaces = at.client.workspaces
    record = await workspaces.find(arguments.workspace, arguments.change_set)
    which = record.workspace_id, record.change_set_id
    await getattr(workspaces, arguments.action)(*which)
    show_change_set(await workspaces.describe(*which), as_json=arguments.json)


async def _compare(at: Any, settings: Settings, record: Any, *, computed: bool = False) -> Any:
    from rebaser_core.ids import ChangeSet
    from rebaser_server.queries.cached_state import archive_of
    from rebaser_server.queries.diff import compare

    change_set = ChangeSet(record.workspace_id, record.change_set_id)
    return await compare(archive_of(at.js, settings, change_set), computed=computed)


async def _diff(at: Any, settings: Settings, arguments: argparse.Namespace) -> None:
    from rebaser_server.commands.render.change_sets import show_comparison

    record = await at.client.workspaces.find(arguments.workspace, arguments.change_set)
    found = await _compare(at, settings, record, computed=arguments.computed)
    show_comparison(found, as_json=arguments.json, as_batch=arguments.batch)


async def _apply(at: Any, settings: Settings, arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.change_sets import show_change_set, show_comparison

    workspaces = at.client.workspaces
    record = await workspaces.find(arguments.workspace, arguments.change_set)
    reviewed = arguments.reviewed
    if not arguments.yes and reviewed is None:
        found = await _compare(at, settings, record)
        show_comparison(found, as_json=False, as_batch=False)
        if not await _confirmed("Apply this to head?"):
            complain("not applied")
            return Exit.FAILED
        reviewed = found.digest
    record = await workspaces.apply(record.workspace_id, record.change_set_id, reviewed=reviewed)
    show_change_set(record, as_json=arguments.json)
    return Exit.OK
