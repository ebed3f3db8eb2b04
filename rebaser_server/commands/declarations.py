"""Every command: its arguments, and the function that runs it, by name.

A function is imported when its command runs. So `rebaser --help`, and a mistake in the arguments,
cost neither NATS nor pydantic.
"""

import argparse
import re
from pathlib import Path
from typing import Any, Final

from rebaser_server.commands.init import files_of
from rebaser_server.commands.support.arguments import (
    Parser,
    PrintText,
    add_address,
    add_address_and_names,
    add_command,
    add_group,
    add_named,
    add_timeout,
    add_wait,
    add_workspace,
    commit_number,
    commit_or_last,
    new_name,
    request_id,
    unless_confirmed,
    whole_number,
)
from rebaser_server.runtime.data_directory import DATA

ANY_PORT: Final = -1
_PORTS: Final = 1 << 16
FIRST_ROWS: Final = 10
"""Rows of a table that are printed if no number is given."""
_LOOK_EVERY: Final = 60
"""Seconds between two looks for newer versions of tables."""
SAMPLE: Final = 20
"""Number of change sets whose store and log `doctor` compares without `--all`."""
WHICH_VALUES: Final = "give the names of the values, or --failed"
_SCOPE: Final = "WORKSPACE for all its change sets, WORKSPACE/head or WORKSPACE/BRANCH for one"
_DIGEST: Final = re.compile("[0-9a-f]{12,64}")
"""A digest, or as many of its first digits as `rebaser diff` prints, or more."""
SHELLS: Final = ("bash", "zsh", "fish")


def add(commands: Any) -> None:
    """Declare all commands, in the order in which the help of a section lists them."""
    for declare in (
        *(_init, _serve, _load, _enqueue, _values, _tables, _why, _workspaces, _services),
        *(_change_sets, _history, _queue, _dvu, _pause, _dead_letters, _checkpoint, _doctor),
    ):
        declare(commands)
    about = "build a class archive that halves the start of Spark"
    add_command(commands, "train", "serve:train", about=about)


def _init(commands: Any) -> None:
    init = add_command(
        commands,
        "init",
        "init:write_project",
        about="write a small project: a graph, a function and its test",
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
    taken = [path for path in files_of(directory) if (directory / path).exists()]
    if taken:
        return f"{directory} has {', '.join(taken)} already: give another directory"
    for each in (directory, *directory.parents):
        if each.exists():
            return None if each.is_dir() else f"{each} is a file: give a directory, or a new name"
    return None


def _serve(commands: Any) -> None:
    up = add_command(
        commands,
        "up",
        "serve:up",
        about="run NATS, a Rebaser and Spark on this machine, to try it out",
        validate=_find_mistake,
    )
    up.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="directory that keeps all data (default: %(default)s)",
    )
    up.add_argument(
        "--port",
        type=int,
        help="port of NATS on localhost; -1 is any that is free (default: 4222, and any that is "
        "free if that one is in use)",
    )
    up.add_argument(
        "--sync",
        choices=("always", "periodic"),
        default="always",
        help="time at which NATS writes confirmed requests to the disk: `always`, before it "
        "confirms; or `periodic`, every two minutes, which is faster: then a power cut loses up to "
        "two minutes of confirmed requests, or all data if the streams are younger "
        "(default: %(default)s)",
    )

    serve = add_command(
        commands,
        "serve",
        "serve:serve",
        about="run the daemon against an existing NATS",
        json=False,
        validate=lambda arguments: (
            "--reload is for --app" if arguments.reload and not arguments.app else None
        ),
    )
    serve.add_argument(
        "--app",
        action="append",
        metavar="MODULE:NAME",
        help="serve this service, or list of services; may be repeated (default: value graphs)",
    )
    serve.flag(
        "--reload", "with --app: start anew whenever a file of Python below this folder changes"
    )

    add_command(
        commands, "settings", "serve:show_settings", about="show the settings in force, as JSON"
    )


def _find_mistake(arguments: argparse.Namespace) -> str | None:
    if arguments.data.is_file():
        return f"--data {arguments.data} is a file: give a directory, or a new name"
    if arguments.port not in {None, ANY_PORT, *range(1, _PORTS)}:
        return f"--port {arguments.port}: give 1 to {_PORTS - 1}, or {ANY_PORT} for any free one"
    return None


def _load(commands: Any) -> None:
    load = add_command(
        commands,
        "load",
        "load:load",
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
    load.flag("--prune", "remove all values that the file does not name")
    load.flag("--dry-run", "show what differs, and end")
    load.flag("--yes", "enqueue it without showing and asking")
    add_wait(load)


def _meaning(text: str) -> tuple[str, str]:
    column, equals, means = text.rpartition("=")
    if not equals:
        raise argparse.ArgumentTypeError(
            f"expected COLUMN=MEANING (for example sku=name), got {text!r}"
        )
    return column, means


def _enqueue(commands: Any) -> None:
    enqueue = add_command(
        commands,
        "enqueue",
        "enqueue:enqueue",
        about="send a file of updates to a change set",
        validate=lambda arguments: (
            "--strict needs --wait: only the reply tells of corrections"
            if arguments.strict and not arguments.wait
            else None
        ),
    )
    add_address(enqueue)
    enqueue.add_argument("file", type=Path, help="file with a JSON array of updates; - reads stdin")
    enqueue.add_argument(
        "--request-id",
        type=request_id,
        metavar="ULID",
        help="id of the request; sent again, it takes effect once (default: a new id)",
    )
    add_wait(
        enqueue, "wait until the request is committed and the values that depend on it are computed"
    )
    enqueue.flag("--strict", "end with exit code 6 if Rebaser corrected any update; needs --wait")
    enqueue.flag("--unregistered", "accept a new change set, which no list of change sets shows")


def _values(commands: Any) -> None:
    values = add_group(
        commands,
        "values",
        about="show the values of a change set, or set one",
        default="get",
    )

    get = add_command(
        values, "get", "values:get_values", about="list values, or show them as a tree", csv=True
    )
    add_address_and_names(
        get, about="names or ids of values to show, or the top of a tree (default: all)"
    )
    get.flag("--tree", "show values by the parts of their names, with their inputs")
    get.add_argument(
        "--depth",
        type=whole_number,
        metavar="PARTS",
        help="show a tree, with names of at most that many parts below the top (default: all)",
    )
    get.commit("--at", "show the values as of that commit (default: latest)")
    get.flag("--all", "show all, also at a terminal (default: the first)")

    put = add_command(values, "set", "values:set_value", about="set a value that is not computed")
    add_address(put)
    add_named(put, "name", "name or id of the value")
    put.add_argument("value", help="the new value as JSON; - reads it from stdin")
    put.flag("--text", "take the value as text, not as JSON")
    put.flag(
        "--table",
        "take the value as the URI of a table of Delta or Parquet that Rebasers copy, which "
        "may end with @VERSION (default: the newest, which is read here)",
    )
    add_wait(put)


def _tables(commands: Any) -> None:
    tables = add_group(
        commands,
        "tables",
        about="show the values that are tables, and which rows differ",
        default="show",
    )
    show = add_command(
        tables,
        "show",
        "tables:describe",
        about="list the values that are tables, or show one: columns, size, inputs, rows",
        validate=lambda arguments: (
            "give --rows or --lineage" if arguments.lineage and arguments.rows is not None else None
        ),
        csv=True,
    )
    add_address_and_names(show, about="name or id of the value (default: list all tables)")
    show.add_argument(
        "-n",
        "--rows",
        type=whole_number,
        metavar="ROWS",
        help=f"print that many of its first rows (default: none; with --csv {FIRST_ROWS})",
    )
    show.flag(
        "--lineage", "show what it is made of, with versions of sources, and what is made of it"
    )
    diff = add_command(
        tables,
        "diff",
        "tables:diff",
        about="show which rows of a table differ from head's, or from before",
    )
    add_address_and_names(diff, about="name or id of the value (default: none; one is needed)")
    diff.add_argument(
        "--key",
        metavar="COLUMNS",
        help="columns that identify a row, with commas between; '' compares whole rows "
        "(default: those that the value's function declares, else whole rows)",
    )
    diff.commit(
        "--since", "compare with that commit of the change set (default: the last one of head)"
    )
    for command in (show, diff):
        command.commit("--at", "show what is as of that commit (default: latest)")
    _sources(tables)


def _sources(tables: Any) -> None:
    pin = add_command(
        tables,
        "pin",
        "tables:pin",
        about="print the newest version of a table of Delta or Parquet, for a graph file",
    )
    pin.add_argument("uri", metavar="URI", help="path of the table, below REBASER_STORE__SOURCES")
    watch = add_command(
        tables,
        "watch",
        "tables:watch",
        about="propose newer versions of tables with a URI as requests, until interrupted",
    )
    add_address_and_names(watch, about="names or ids of the values (default: all that have a URI)")
    watch.add_argument(
        "--every",
        type=float,
        default=_LOOK_EVERY,
        metavar="SECONDS",
        help="time between two looks (default: %(default)s)",
    )
    watch.flag("--once", "look once, and end")


def _why(commands: Any) -> None:
    why = add_command(
        commands,
        "why",
        "values:why",
        about="show which edits made a value what it is, or keep it back",
    )
    add_address_and_names(why, about="name or id of the value (default: none; one is needed)")
    why.commit("--at", "explain the value as of that commit (default: latest)")


def _workspaces(commands: Any) -> None:
    group = add_group(commands, "workspaces", about="create, list or delete workspaces")
    add_command(group, "list", "change_sets:list_workspaces", about="list all workspaces", csv=True)

    create = add_command(
        group,
        "create",
        "change_sets:create_workspace",
        about="create a workspace and its head change set",
    )
    create.add_argument("name", type=new_name, help="name of the workspace")

    delete = add_command(
        group,
        "delete",
        "change_sets:delete_workspace",
        about="close all change sets of a workspace; delete their data after the retention time",
        validate=unless_confirmed(yes="--yes"),
    )
    add_named(delete, "workspace", "name or id of the workspace")
    delete.flag("--yes", "delete without asking")


def _services(commands: Any) -> None:
    services = add_command(
        commands,
        "services",
        "services:show_services",
        about="list services of handlers; with --json, their schemas",
    )
    printed = services.add_mutually_exclusive_group()
    printed.add_argument(
        "--stub",
        type=new_name,
        metavar="SERVICE",
        help="print a module of Python with a typed client of it (default: list services)",
    )
    printed.add_argument(
        "--permissions",
        nargs="+",
        type=new_name,
        metavar="SERVICE",
        help="print the permissions of a NATS user that may call these services and nothing else "
        "(default: list services)",
    )


def _change_sets(commands: Any) -> None:
    group = add_group(
        commands,
        "change-sets",
        about="list, fork, refresh, apply or abandon change sets, and more",
    )

    listing = add_command(
        group,
        "list",
        "change_sets:list_change_sets",
        about="list the open change sets of a workspace",
        csv=True,
    )
    add_workspace(listing)
    listing.flag("--all", "list the closed ones, too")

    fork = add_command(
        group, "fork", "change_sets:fork", about="create a branch of head or of another change set"
    )
    add_workspace(fork)
    fork.add_argument("name", type=new_name, help="name of the branch, or WORKSPACE/NAME")
    fork.add_argument("--base", help="name or id of the change set to fork (default: head)")
    fork.add_argument(
        "--commit", type=commit_number, help="commit of the base at which to fork (default: latest)"
    )

    describe = add_command(
        group, "describe", "change_sets:describe", about="show a change set and the comments on it"
    )
    add_address(describe)
    describe.add_argument(
        "--rename", type=new_name, metavar="NAME", help="give it another name (default: none)"
    )
    describe.add_argument("--comment", metavar="TEXT", help="comment on it (default: no comment)")

    refresh = add_command(
        group, "refresh", "change_sets:refresh", about="merge the changes of head into a branch now"
    )
    add_address(refresh)

    apply = add_command(
        group,
        "apply",
        "change_sets:apply",
        about="show what a branch changes, ask, and apply it to head",
        validate=_applicable,
    )
    add_address(apply)
    apply.flag("--yes", "apply without showing it and asking")
    apply.add_argument(
        "--reviewed",
        metavar="DIGEST",
        help="apply only the difference with that digest, without asking (default: ask)",
    )
    _add_all(apply)
    add_wait(apply, "wait until the values of head that depend on it are computed")

    abandon = add_command(
        group, "abandon", "change_sets:abandon", about="close a branch without effect on head"
    )
    add_address(abandon)
    abandon.flag("--delete", "also delete its data after the retention time")
    abandon.flag("--yes", "close it without asking")

    diff = add_command(
        commands,
        "diff",
        "change_sets:diff",
        about="show what a branch would change in head, and what that changes",
        csv=True,
    )
    add_address(diff)
    _add_all(diff)
    diff.flag("--rows", "also show which rows of tables differ")


def _add_all(parser: Parser) -> None:
    parser.flag(
        "--all",
        "list all edits and effects (default: the first edits, and effects by name pattern)",
    )


def _applicable(arguments: argparse.Namespace) -> str | None:
    """Fault of an apply that could not ask, or whose review is none."""
    asks = unless_confirmed(yes="--yes", reviewed="--reviewed DIGEST")
    reviewed = arguments.reviewed
    if reviewed is not None and not _DIGEST.fullmatch(reviewed):
        return f"--reviewed takes the digest that `rebaser diff` prints, got {reviewed!r}"
    return asks(arguments)


def _history(commands: Any) -> None:
    log = add_command(
        commands,
        "log",
        "history:log",
        about="show the requests of a change set and their outcomes",
        csv=True,
    )
    add_address(log)
    log.flag("--follow", "show the work on the change set as it happens, until Ctrl-C")
    log.add_argument(
        "--last",
        type=whole_number,
        metavar="N",
        help="show only the last N requests (default: all)",
    )

    revert = add_command(
        commands,
        "revert",
        "history:revert",
        about="undo one commit of a change set, by a new commit",
    )
    add_address(revert)
    revert.add_argument(
        "commit",
        type=commit_or_last,
        metavar="COMMIT",
        help="number of the commit, as in `rebaser log`; `last` for the latest one of a request",
    )
    revert.flag("--force", "also undo what a later commit changed again")
    revert.flag("--dry-run", "show the updates without sending them")
    revert.flag("--yes", "send them without asking")
    add_wait(revert)


def _queue(commands: Any) -> None:
    queue = add_command(
        commands,
        "queue",
        "queue:queue",
        about="list the requests that wait, by change set",
        csv=True,
    )
    queue.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of change sets to list, the longest queue or oldest task first (default: "
        "%(default)s)",
    )
    queue.flag("--tasks", "list the tasks: one for each change set with work to do")


def _dvu(commands: Any) -> None:
    group = add_group(commands, "dvu", about="show, cancel or run dependent values updates")

    status = add_command(
        group,
        "status",
        "dvu:status",
        about="list updates that run or are due; for one change set also the values that failed, "
        "and functions that are not pure",
    )
    add_address(status, default="all change sets")

    cancel = add_command(
        group,
        "cancel",
        "dvu:cancel",
        about="stop the running update; it stays due, and Rebaser tries it again a minute later",
    )
    add_address(cancel)

    run = add_command(
        group,
        "run",
        "dvu:run",
        about="compute values again, now",
        validate=lambda arguments: (
            WHICH_VALUES if not arguments.failed and arguments.address is None else None
        ),
    )
    add_address_and_names(
        run,
        about="names or ids of computed values, or of functions for all that they compute "
        "(default: none)",
    )
    run.flag("--failed", "compute all values that failed")
    add_wait(run, "wait until they are computed")


def _pause(commands: Any) -> None:
    pause = add_command(
        commands,
        "pause",
        "queue:pause",
        about="stop work on a change set, a workspace or all, or list pauses",
        validate=lambda arguments: (
            _validate(arguments) if arguments.all or arguments.reason is not None else None
        ),
    )
    pause.description = f"{pause.description}; requests wait meanwhile"
    _add_scope(pause, default="list all pauses")
    pause.add_argument("--reason", help="reason, for the list of pauses (default: none)")

    resume = add_command(
        commands,
        "resume",
        "queue:resume",
        about="end a pause; Rebaser works off the requests that waited",
        validate=_validate,
    )
    _add_scope(resume, default="none")


def _add_scope(parser: Parser, *, default: str) -> None:
    add_address(parser, about=_SCOPE, default=default)
    parser.flag("--all", "everything in all workspaces")


def _validate(arguments: argparse.Namespace) -> str | None:
    if arguments.all is bool(arguments.address):
        return "give a WORKSPACE, a WORKSPACE/BRANCH, or --all"
    return None


def _dead_letters(commands: Any) -> None:
    group = add_group(
        commands,
        "dead-letters",
        about="show, replay or purge requests that Rebaser gave up",
        default="show",
    )

    show = add_command(
        group,
        "show",
        "queue:show_letters",
        about="list dead letters, the latest first, or show one with its updates",
        validate=lambda arguments: (
            "one letter is shown as JSON: leave --csv out"
            if arguments.csv and arguments.sequence is not None
            else None
        ),
        csv=True,
    )
    _add_number(show, nargs="?")
    show.add_argument(
        "--limit",
        type=whole_number,
        default=50,
        help="number of letters to list (default: %(default)s)",
    )

    replay = add_command(
        group,
        "replay",
        "queue:replay_letters",
        about="enqueue the updates of dead letters as new requests",
    )
    _add_number(replay, nargs="+")

    purge = add_command(
        group,
        "purge",
        "queue:purge_letters",
        about="delete dead letters for good",
        validate=lambda arguments: (
            "give the NUMBER of each letter, or --all"
            if arguments.all is bool(arguments.sequence)
            else None
        ),
    )
    _add_number(purge, nargs="*")
    purge.flag("--all", "delete all dead letters")


def _add_number(parser: Parser, **options: Any) -> None:
    defaults = {"*": " (default: none)", "?": " (default: list them)"}
    default = defaults.get(options.get("nargs", ""), "")
    parser.add_argument(
        "sequence",
        type=whole_number,
        metavar="NUMBER",
        help=f"number of the letter, as in `rebaser dead-letters`{default}",
        **options,
    )


def _checkpoint(commands: Any) -> None:
    checkpoint = add_command(
        commands, "checkpoint", "checkpoint:checkpoint", about="store the state of a change set now"
    )
    add_address(checkpoint)
    add_timeout(checkpoint)


def _doctor(commands: Any) -> None:
    doctor = add_command(
        commands,
        "doctor",
        "doctor:examine",
        about="check streams, tasks, store and logs; with --repair, mend them",
    )
    doctor.description = (
        f"{doctor.description}; exit codes: 0 healthy, 3 repairable, 4 needs a person"
    )
    doctor.flag("--repair", "repair what is safe to repair")
    doctor.flag("--all", f"check all change sets, not {SAMPLE} of them")
    doctor.flag("--deep", "compare each checkpoint with a replay of the log")


def add_completion(commands: Any, parser: argparse.ArgumentParser) -> None:
    def script(shell: str) -> str:
        import shtab

        return str(shtab.complete(parser, shell=shell))

    completion = add_command(
        commands,
        "completion",
        "completion:complete",
        about="print a completion script: `source <(rebaser completion bash)`",
    )
    completion.add_argument(
        "shell",
        choices=(*SHELLS, "names"),
        action=PrintText,
        text=script,
        passes=("names",),
        help="the shell to complete for; `names` prints the names that could end a command line",
    )
    completion.add_argument(
        "word",
        nargs="*",
        help="words of the command line behind `rebaser`; the last is incomplete (default: none)",
    )
    completion.set_defaults(root=parser)
