"""Identifiers: ULIDs, one type for each thing they name.

A new id consists of the time and of random bytes, which are read for many ids at once.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Collection
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, core_schema
from ulid import ULID

from rebaser_core.errors import MalformedId

_CHANCE_OCTETS: Final = 10
_CHANCE_BITS: Final = 8 * _CHANCE_OCTETS
_IDS_AT_ONCE: Final = 64
"""Number of ids whose random bytes are read by one call of the system."""

MAX_MILLISECONDS: Final = 2**48 - 1


class NewIds:
    """A maker of ids for all threads; in one millisecond, each id is the last plus one."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Discard the random bytes read before: a forked process has them in its memory, too."""
        self._lock = threading.Lock()
        self._last = 0
        self._chances: list[int] = []
        """Random parts that no id has yet."""

    def make(self, milliseconds: int) -> bytes:
        with self._lock:
            if self._last >> _CHANCE_BITS == milliseconds:
                self._last += 1
            else:
                chance = (self._chances or self._read_chances()).pop()
                self._last = milliseconds << _CHANCE_BITS | chance
            return self._last.to_bytes(16, "big")

    def _read_chances(self) -> list[int]:
        octets = os.urandom(_IDS_AT_ONCE * _CHANCE_OCTETS)
        ends = range(_CHANCE_OCTETS, len(octets) + 1, _CHANCE_OCTETS)
        self._chances = [int.from_bytes(octets[end - _CHANCE_OCTETS : end], "big") for end in ends]
        return self._chances


_new: Final = NewIds()
if sys.platform != "win32":  # Windows has no fork
    os.register_at_fork(after_in_child=_new.forget)


def octets(milliseconds: int | None = None) -> bytes:
    """Return the bytes of a new id, for now or for `milliseconds` of the epoch.

    Raises:
        ValueError: no id has such a time.
    """
    if milliseconds is None:
        return _new.make(time.time_ns() // 1_000_000)
    if not 0 <= milliseconds <= MAX_MILLISECONDS:
        raise ValueError(f"{milliseconds} ms of the epoch are beyond what an id can say")
    return _new.make(milliseconds)


CANONICAL: Final = r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$"
_is_canonical: Final = re.compile(CANONICAL).fullmatch
ID_LENGTH: Final = 26
_EXAMPLE: Final = "01JZ3Y7Q8M4T2V9K6X5B0N1CDE"
_are_canonical: Final = re.compile(f"(?:{CANONICAL[1:-1]})*+").fullmatch

_SHORTEST_PART: Final = 4
"""Minimum number of characters of a part of an id that may stand for it."""
_split_part: Final = re.compile(
    r"([0-9A-HJKMNP-TV-Z]*)(?:(?:…|\.\.+)([0-9A-HJKMNP-TV-Z]*))?", re.IGNORECASE
).fullmatch

DIGITS: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Digits of an id. The first digit of an id is one of the first eight."""
_DIGITS: Final = DIGITS.decode()
_TO_PYTHON: Final = str.maketrans(_DIGITS, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
"""Translation from Crockford's digits to those that `int` reads."""

_PAIRS: Final = [one + other for one in _DIGITS for other in _DIGITS]
_TIME_OCTETS: Final = 6
_SHIFTS: Final = range(120, -1, -10)
"""Bits below each pair of digits, the first pair's first."""


class Ulid(ULID):
    """A ULID with one text form, which `str` writes. Subjects and message ids rely on it.

    The text is made once, since the library takes many times as long as a lookup.
    """

    _text: str | None = None

    def __init__(self, value: bytes | None = None) -> None:
        if value is None:  # the library's check takes several times as long
            self.bytes = octets()
        else:
            super().__init__(value)

    @classmethod
    def from_timestamp(cls, value: float) -> Self:
        """A new id of that time: an integer in milliseconds of the epoch, or a float in seconds."""
        return cls(octets(value if isinstance(value, int) else int(value * 1000)))

    @classmethod
    def from_str(cls, string: str) -> Self:
        """Read the text of an id; raise `ValueError` for any other text, also for lower case."""
        if not _is_canonical(string):
            raise ValueError(f"{string[:80]!r} is not a canonical ULID")
        return cls._from_canonical(string)

    @classmethod
    def of(cls, given: object, argument: str) -> Self:
        """The id that a caller gave as `argument`: one of this type, or its text.

        Raises:
            MalformedId: it is neither.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str) and _is_canonical(given):
            return cls._from_canonical(given)
        if isinstance(given, ULID):
            return cls(given.bytes)
        raise MalformedId(
            f"{argument} is {given!r:.80}, which is no id: an id is a ULID, {ID_LENGTH} digits and "
            f"upper-case letters as {_EXAMPLE}"
        )

    @classmethod
    def _from_canonical(cls, string: str) -> Self:
        made = cls.__new__(cls)  # the pattern has counted the digits
        made.bytes = int(string.translate(_TO_PYTHON), 32).to_bytes(16, "big")
        made._text = string  # noqa: SLF001 - of this class
        return made

    @property
    def milliseconds(self) -> int:
        """Milliseconds since 1970.

        The library's property is cached under a lock, which takes longer.
        """
        return int.from_bytes(self.bytes[:_TIME_OCTETS], "big")

    def __str__(self) -> str:
        if self._text is None:
            number = int.from_bytes(self.bytes, "big")
            self._text = "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
        return self._text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # The library's own also takes integers, and lets errors out that are no ValueError.
        text = core_schema.str_schema(pattern=CANONICAL, strict=True)
        return core_schema.union_schema(
            [
                core_schema.is_instance_schema(ULID),
                core_schema.no_info_after_validator_function(cls._from_canonical, text),
            ],
            custom_error_type="ulid",
            custom_error_message="Input should be a ULID in its canonical text, in upper case",
            serialization=core_schema.to_string_ser_schema(when_used="json-unless-none"),
        )


class WorkspaceId(Ulid):
    """Names a workspace.

    Example:
        workspace = WorkspaceId.from_str("01JZ8M3Q7V0000000000000003")
    """


class ChangeSetId(Ulid):
    """Names a change set; unique across workspaces.

    Example:
        await client.enqueue_updates(workspace, ChangeSetId(), updates)
    """


class RequestId(Ulid):
    """Names a request for good: every retry carries it again.

    Example:
        request_id = RequestId()  # stored first: each retry carries it
        await shop.enqueue(updates, request_id=request_id)
    """


class ChangeSet(NamedTuple):
    """The unit of exclusive work: a change set and the workspace that it is in."""

    workspace_id: WorkspaceId
    change_set_id: ChangeSetId

    @classmethod
    def of(cls, workspace_id: object, change_set_id: object) -> Self:
        """The change set of two ids, each of which may be text.

        Raises:
            MalformedId: one of them is no id; the message says which.
        """
        return cls(
            WorkspaceId.of(workspace_id, "workspace_id"),
            ChangeSetId.of(change_set_id, "change_set_id"),
        )

    def plain(self) -> dict[str, str]:
        """The ids as plain data, for programs and pages."""
        return {"workspace": str(self.workspace_id), "changeSet": str(self.change_set_id)}

    def __str__(self) -> str:
        return f"{self.workspace_id}.{self.change_set_id}"


UlidText = Annotated[str, StringConstraints(pattern=CANONICAL)]
"""A ULID in its canonical text. Values and functions are named so: there may be many."""


def are_ulid_texts(texts: Collection[Any]) -> bool:
    """Whether each is a ULID in its canonical text; takes a tenth of a microsecond for each."""
    return (
        set(map(type, texts)) <= {str}
        and set(map(len, texts)) <= {ID_LENGTH}
        and _are_canonical("".join(texts)) is not None
    )


ValueId = UlidText
FuncId = UlidText


def is_part(text: str) -> bool:
    """Whether the text may stand for an id: its beginning, its end after `…`, or both."""
    part = _split_part(text)
    return part is not None and len(part[1] + (part[2] or "")) >= _SHORTEST_PART


def has_part(whole_id: str, text: str) -> bool:
    """Whether the text may stand for this id. Case does not matter."""
    part = _split_part(text)
    if part is None or not is_part(text):
        return False
    return whole_id.startswith(part[1].upper()) and whole_id.endswith((part[2] or "").upper())
