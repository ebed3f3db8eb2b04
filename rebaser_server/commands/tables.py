"""`rebaser tables`: show the values that are tables, what one has, its rows, and which differ.

And follow tables that lie outside of the store: `watch` proposes their newest versions.
"""

import argparse
import json
from typing import TYPE_CHECKING, Any, Final

from rebaser_server.commands.support.arguments import (
    Exit,
    UnusableInput,
    add_address_and_names,
    add_command,
    add_group,
    commit_number,
    whole_number,
    with_deployment,
)
from rebaser_server.terminal.lines import complain, say, say_json

if TYPE_CHECKING:
    from rebaser_client.change_set import ChangeSetHandle
    from rebaser_core.ids import RequestId
    from rebaser_core.queries import ValueSnapshot
    from rebaser_server.commands.support.deployment import Deployment
    from rebaser_server.settings.settings import Settings
    from rebaser_server.store.sources import NewestVersion

_HEAD: Final = 10
_EVERY: Final = 60
"""Seconds between two looks for newer versions."""
_ID_TIME, _ID_CHANCE = 6, 10
"""Bytes of a request's id: of its time in milliseconds, and the others."""


def add(commands: Any) -> None:
    """Declare the commands."""
    tables = add_group(
        commands,
        "tables",
        about="show the values that are tables, and which rows differ",
        default="show",
    )
    show = add_command(
        tables,
        "show",
        _show,
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
        help=f"print that many of its first rows (default: none; with --csv {_HEAD})",
    )
    show.add_argument(
        "--lineage",
        action="store_true",
        help="show what it is made of, with versions of sources, and what is made of it",
    )
    diff = add_command(
        tables, "diff", _diff, about="show which rows of a table differ from head's, or from before"
    )
    add_address_and_names(diff, about="name or id of the value (default: none; one is needed)")
    diff.add_argument(
        "--key",
        metavar="COLUMNS",
        help="columns that identify a row, with commas between; '' compares whole rows "
        "(default: those that the value's function declares, else whole rows)",
    )
    diff.add_argument(
        "--since",
        type=commit_number,
        metavar="COMMIT",
        help="compare with that commit of the change set (default: the last one of head)",
    )
    for command in (show, diff):
        command.add_argument(
            "--at",
            type=commit_number,
            metavar="COMMIT",
            help="show what is as of that commit (default: latest)",
        )
    _add_sources(tables)


def _add_sources(tables: Any) -> None:
    pin = add_command(
        tables,
        "pin",
        _pin,
        about="print the newest version of a table of Delta or Parquet, for a graph file",
    )
    pin.add_argument("uri", metavar="URI", help="path of the table, below REBASER_STORE__SOURCES")
    watch = add_command(
        tables,
        "watch",
        _watch,
        about="propose newer versions of tables with a URI as requests, until interrupted",
    )
    add_address_and_names(watch, about="names or ids of the values (default: all that have a URI)")
    watch.add_argument(
        "--every",
        type=float,
        default=_EVERY,
        metavar="SECONDS",
        help="time between two looks (default: %(default)s)",
    )
    watch.add_argument("--once", action="store_true", help="look once, and end")


async def _pin(settings: "Settings", arguments: argparse.Namespace) -> int:
    import asyncio

    found = await asyncio.to_thread(newest_version, settings, arguments.uri)
    pinned = {"uri": found.table.path, "version": found.table.version}
    if arguments.json:
        say_json(pinned)
    else:
        say(f"{{$table: {{uri: {json.dumps(found.table.path)}, version: {found.table.version}}}}}")
    return Exit.OK


def newest_version(settings: "Settings", uri: str) -> "NewestVersion":
    """Return the newest version of the table at that URI, which is read here. Blocks.

    Raises:
        UnusableInput: it is no URI of a table.
        NotATable: there is none, or it may not be read.
    """
    from rebaser_core.table_values import source_path
    from rebaser_server.store.sources import Sources

    try:
        path = source_path(uri)
    except ValueError as error:
        raise UnusableInput(str(error)) from error
    return Sources(settings.store.sources).newest(path)


@with_deployment
async def _watch(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    import asyncio

    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids

    change_set, names = await change_set_and_names(deployment, arguments)
    handle = deployment.client.change_set(*change_set)
    names = await whole_ids(deployment, change_set, names)
    watch = _Watch(deployment.settings, handle, names, as_json=arguments.json)
    while True:
        code = await watch.look()
        if arguments.once or code == Exit.BAD_SETTINGS:
            return code
        await asyncio.sleep(max(0.1, arguments.every))


class _Watch:
    """Looks for newer versions of the tables of one change set; what was said is not repeated."""

    def __init__(
        self, settings: "Settings", handle: "ChangeSetHandle", names: list[str], *, as_json: bool
    ) -> None:
        self._settings = settings
        self._handle = handle
        self._names = names
        self._as_json = as_json
        self._proposed: set[RequestId] = set()
        self._complaints: set[str] = set()

    async def look(self) -> int:
        """Propose each version that is newer than its value; return how it went."""
        import asyncio

        from rebaser_core.errors import RebaserError
        from rebaser_core.jetstream import JetStreamError
        from rebaser_core.table_values import PinnedTable

        code, errors = Exit.OK, (RebaserError, JetStreamError)
        try:
            read = await self._handle.values(*self._names)
        except errors as error:
            return self._failed(str(error))
        for value in read.values():
            table, name = PinnedTable.of(value.value), value.name or value.id
            if table is None:
                if self._names:
                    complain(f"rebaser: {name!r} is no table with a URI: there is nothing to watch")
                    return Exit.BAD_SETTINGS
                continue
            try:
                found = await asyncio.to_thread(newest_version, self._settings, table.path)
                if found.table != table:
                    await self._propose(value, table.key, found, read.commit)
            except errors as error:
                code = self._failed(f"{name}: {error}")
        return code

    def _failed(self, message: str) -> Exit:
        if message not in self._complaints:
            self._complaints.add(message)
            complain(f"rebaser: {message}")
        return Exit.FAILED

    async def _propose(
        self, value: "ValueSnapshot", before: str, found: "NewestVersion", at: int
    ) -> None:
        """Send the request, which has the id that every watcher gives it: it takes effect once.

        So a version that was taken back is not proposed again. `value` is as of the commit `at`.
        """
        from blake3 import blake3

        from rebaser_core.ids import RequestId

        change_set = await self._handle.ids()
        text = f"{change_set} {value.id} {before} {found.table.key}"
        chance = blake3(text.encode()).digest(length=_ID_CHANCE)
        request = RequestId.from_bytes(round(found.written * 1000).to_bytes(_ID_TIME) + chance)
        if request in self._proposed:
            return
        update = {"setValue": {"valueId": value.id, "value": found.table.to_value()}}
        outcome = await self._handle.enqueue([update], request_id=request, wait="committed")
        self._proposed.add(request)
        name, table = value.name or value.id, found.table
        if self._as_json:
            proposed = {"uri": table.path, "version": table.version, "commit": outcome.commit}
            say_json({"id": value.id, "name": value.name, **proposed})
        else:
            was = "," if (outcome.commit or 0) > at else " was proposed before, by"
            say(f"{name}: version {table.version} of {table.path}{was} commit {outcome.commit}")


@with_deployment
async def _show(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render import tables as render
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    handle = deployment.client.change_set(*change_set)
    if not names and not arguments.lineage and arguments.rows is None:
        await render.show_tables(handle, arguments)
        return Exit.OK
    if not _is_one(names, "show"):
        return Exit.BAD_SETTINGS
    [name] = await whole_ids(deployment, change_set, names)
    table = await handle.table(name, at=arguments.at)
    if arguments.lineage:
        await render.show_lineage(handle, table, as_json=arguments.json)
    elif arguments.csv or arguments.rows is not None:
        rows = await table.head(arguments.rows or _HEAD)
        render.show_rows(rows, arguments)
    else:
        await render.show_table(handle, table, as_json=arguments.json)
    return Exit.OK


@with_deployment
async def _diff(deployment: "Deployment", arguments: argparse.Namespace) -> int:
    from rebaser_server.commands.render.tables import show_difference
    from rebaser_server.commands.support.addresses import change_set_and_names, whole_ids

    change_set, names = await change_set_and_names(deployment, arguments, closed=True)
    if not _is_one(names, "diff"):
        return Exit.BAD_SETTINGS
    [name] = await whole_ids(deployment, change_set, names)
    table = await deployment.client.change_set(*change_set).table(name, at=arguments.at)
    key = arguments.key
    if key is not None:
        key = [name.strip() for name in key.split(",") if name.strip()]
    difference = await table.diff(key, commit=arguments.since)
    show_difference(difference, as_json=arguments.json)
    return Exit.OK


def _is_one(names: list[str], command: str) -> bool:
    """Whether the arguments name one value; else complain."""
    if len(names) == 1:
        return True
    which = " or ".join(names) or "NAME"
    complain(f"rebaser: name one value: rebaser tables {command} ADDRESS {which}")
    return False
