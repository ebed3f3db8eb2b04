"""The code that a change set's values were computed with, and what becomes due once it changes.

A value that has its result, and is not due, was computed with the code that the last commit names
(`read_code`); where the digest is `_MIXED`, with that or another.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from blake3 import blake3

from rebaser_core.commits import CodeEntry, read_code, write_code
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_server.compute.functions.runtimes import CodeVersion, code_version, installed_version

_MIXED: Final = "mixed"
_ID_TIME: Final = 6
"""Bytes of an id that are a time."""


def after_update(text: str, functions: Iterable[tuple[str, str]], *, is_last: bool) -> str:
    """The code after an update here that used these functions; `is_last`: none is due any more."""
    entries = read_code(text)
    if is_last:
        entries = {name: each._replace(before="") for name, each in entries.items()}
    for own in filter(None, {code_version(*function) for function in functions}):
        known = entries.setdefault(own.name, CodeEntry(own.version, own.digest))
        if known.digest != own.digest:
            entries[own.name] = known._replace(digest=_MIXED)
    return write_code(dict(sorted(entries.items())))


def outdated(text: str) -> dict[str, CodeVersion]:
    """Return what is installed here in place of the code in `text`. May block."""
    installed = {name: (each, installed_version(name)) for name, each in read_code(text).items()}
    return {name: own for name, (each, own) in installed.items() if own and own[2] != each.digest}


def renewed(text: str, due: Mapping[str, CodeVersion]) -> str:
    """The code once all values are due that were computed with what these take the place of."""
    entries = read_code(text)
    for name, own in due.items():
        entries[name] = CodeEntry(own.version, own.digest, entries[name].version)
    return write_code(entries)


def renewal_id(change_set: ChangeSet, text: str, stored: float) -> RequestId:
    """Id of the request to have computed anew here what was computed with other code.

    The same for each process with the same code that asks because of the same commit, which was
    stored at that time, in seconds since 1970.
    """
    return RequestId.from_bytes(round(stored * 1000).to_bytes(_ID_TIME) + _wanted(change_set, text))


def is_renewal(request: RequestId, change_set: ChangeSet, text: str) -> bool:
    """Whether a process with the code that is installed here made this id. May block."""
    return request.bytes[_ID_TIME:] == _wanted(change_set, text)


def _wanted(change_set: ChangeSet, text: str) -> bytes:
    own = [str(installed_version(name)) for name in sorted(read_code(text))]
    workspace, number = change_set
    return blake3(f"{workspace}.{number} {own}".encode()).digest(length=10)
