"""Change sets, workspaces and values that the words of a command name.

`REBASER_ADDRESS` has the address for commands that are given none.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rebaser_client.errors import AmbiguousAddress
from rebaser_client.workspaces import AddressedChangeSet
from rebaser_core.errors import NoSuchChangeSet, RebaserError
from rebaser_core.ids import CANONICAL, ChangeSet, ChangeSetId, WorkspaceId, has_part, is_part
from rebaser_core.records import PauseScope, WorkspaceRecordV1
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.terminal.lines import complain

_VARIABLE: Final = "REBASER_ADDRESS"


_IN_USE: Final = "."
"""Word for the address in use, where a word could be an address or a name of a value."""

_LISTED: Final = 10
"""Maximum number of ids that an error lists."""

_is_id: Final = re.compile(CANONICAL).fullmatch


class NoAddress(RebaserError):
    """A command was given no address, and none is in use."""


async def change_set_of(
    deployment: Deployment,
    arguments: argparse.Namespace,
    *,
    closed: bool = False,
    new: bool = False,
    hint: str = "",
) -> ChangeSet:
    """The change set that `arguments.address` names, or the one in use.

    Two ids need not be registered: a change set of these ids may have a log or requests; with `new`
    they may lack these, too. With `closed` a closed one may be named, and stderr says how it ended.

    Raises:
        NotInWorkspace: the ids do not belong together.
        NoSuchChangeSet: the change set does not exist; the message ends with `hint`.
        AmbiguousAddress: several have that address.
        NoAddress: none is given, and none is in use.
    """
    address = _address(deployment, arguments)
    return await _find(deployment, address, closed=closed, new=new, hint=hint)


async def change_set_and_names(
    deployment: Deployment, arguments: argparse.Namespace, *, closed: bool = False
) -> tuple[ChangeSet, list[str]]:
    """The change set, as `change_set_of`, and the words that follow: names or ids of values.

    Two whole ids are those of workspace and change set. A first word that is no address is a
    name, if an address is in use.
    """
    words = [word for word in (arguments.address, *arguments.name) if word is not None]
    if len(words) > 1 and _is_id(words[0]) and _is_id(words[1]):
        return await _find(deployment, "/".join(words[:2]), closed=closed), words[2:]
    if words and words[0] != _IN_USE:
        try:
            return await _find(deployment, words[0], closed=closed), words[1:]
        except NoSuchChangeSet:
            if not deployment.settings.address:
                raise
    names = words[1:] if words[:1] == [_IN_USE] else words
    return await _find(deployment, _in_use(deployment), closed=closed), names


async def find_registered(
    deployment: Deployment, arguments: argparse.Namespace, *, closed: bool = False
) -> AddressedChangeSet:
    """The change set, as `change_set_of`, if the registry has it."""
    address = _address(deployment, arguments)
    found = await deployment.client.addresses.find(address, closed=closed)
    return _noted(found, address)


async def workspace_of(deployment: Deployment, word: str | None) -> WorkspaceRecordV1:
    """The workspace of that name or id; without a word, that of the address in use."""
    addresses = deployment.client.addresses
    if word not in (None, _IN_USE):
        return await addresses.workspace(word or "")
    return (await addresses.find(_in_use(deployment), closed=True)).workspace


async def scope_of(deployment: Deployment, arguments: argparse.Namespace) -> PauseScope:
    """Scope that the words name: a workspace or a change set; without words everything."""
    if not arguments.address:
        return PauseScope()
    address = _address(deployment, arguments)
    if "/" in address:
        return PauseScope(*await _find(deployment, address, new=True))
    if _is_id(address):
        change_set_id = ChangeSetId.from_str(address)
        home = await deployment.client.workspaces.registry.workspace_of(change_set_id)
        if home is None:
            return PauseScope(WorkspaceId.from_str(address))
        return PauseScope(home, change_set_id)
    try:
        return PauseScope((await deployment.client.addresses.workspace(address)).workspace_id)
    except NoSuchChangeSet:
        return PauseScope(*(await deployment.client.addresses.find(address)).change_set)


async def whole_ids(
    deployment: Deployment, change_set: ChangeSet, names: Sequence[str]
) -> list[str]:
    """The names of values, with the whole id in place of a part of an id.

    Raises:
        AmbiguousAddress: several ids have that part.
    """
    if not any(is_part(name) for name in names):
        return [*names]
    handle = deployment.client.change_set(*change_set)
    parts = (await handle.values(*names, missing_ok=True)).missing
    if not any(map(is_part, parts)):
        return [*names]
    ids = [*await handle.values()]
    return [one_id(ids, name) if name in parts else name for name in names]


async def one_value(
    deployment: Deployment,
    change_set: ChangeSet,
    names: Sequence[str],
    arguments: argparse.Namespace,
) -> str | None:
    """The only one of the names, as `whole_ids`; None unless there is one: stderr says so."""
    if len(names) == 1:
        return (await whole_ids(deployment, change_set, names))[0]
    which = " or ".join(names) or "NAME"
    complain(f"rebaser: name one value: {arguments.parser.prog} ADDRESS {which}")
    return None


def one_id(ids: Iterable[str], part: str) -> str:
    """The only id with that part; the part itself, if none has it.

    Raises:
        AmbiguousAddress: several have it.
    """
    found = [each for each in ids if has_part(each, part)]
    if len(found) > 1:
        raise AmbiguousAddress(f"{part!r} may be any of these ids: {', '.join(found[:_LISTED])}")
    return found[0] if found else part


async def add_addresses(
    deployment: Deployment, rows: Iterable[dict[str, Any]], *, whole: str | None = None
) -> None:
    """Give each row, which has ids as `workspace` and `changeSet`, their `address`.

    The address of a row without a change set is the workspace's name and `whole`; without a
    workspace, too, `whole`.
    """
    addresses = deployment.client.addresses
    for row in rows:
        workspace, change_set = row["workspace"], row["changeSet"]
        if workspace is None:
            row["address"] = whole
        elif change_set is None:
            name = await addresses.name_of(workspace)
            row["address"] = f"{name}, {whole}" if whole else name
        else:
            row["address"] = await addresses.address_of((workspace, change_set))


def _address(deployment: Deployment, arguments: argparse.Namespace) -> str:
    """The address that `arguments.address` is, or the one in use."""
    address = "/".join(arguments.address)
    return _in_use(deployment) if address in ("", _IN_USE) else address


def _in_use(deployment: Deployment) -> str:
    """The address in use, which stderr names."""
    address = deployment.settings.address
    if not address:
        raise NoAddress(
            "give the ADDRESS of a change set, such as `shop` or `shop/winter`; the variable "
            f"{_VARIABLE} has one for commands that are given none"
        )
    complain(f"in {address} ({_VARIABLE})")
    return address


async def _find(
    deployment: Deployment, address: str, *, closed: bool = False, new: bool = False, hint: str = ""
) -> ChangeSet:
    workspace, _, branch = address.partition("/")
    if _is_id(workspace) and _is_id(branch):
        change_set = ChangeSet.of(workspace, branch)
        if new:
            await deployment.check_change_set(change_set)
        else:
            await deployment.require_change_set(change_set, hint)
        return change_set
    found = await deployment.client.addresses.find(address, closed=closed)
    return _noted(found, address).change_set


def _noted(found: AddressedChangeSet, address: str) -> AddressedChangeSet:
    """Return the change set; say on stderr how it ended, unless an id named it."""
    if found.ended is not None and not _is_id(address.rpartition("/")[2]):
        complain(found.ended)
    return found
