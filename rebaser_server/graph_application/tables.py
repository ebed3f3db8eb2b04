"""Tables as an extension of the value graph: the files that values name.

See `rebaser_server.tables` for how they lie in the store.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rebaser_core.table_values import TABLE
from rebaser_server.commit_log.garbage_collection import CONDEMNED, Holdings, HoldingsFound
from rebaser_server.files import SharedFiles
from rebaser_server.tables import TableFiles

_KEY: Final = re.compile(rb"[0-9a-f]{64}")
_BASE64: Final = re.compile(rb"[A-Za-z0-9+/]{64,}")


def _base64_of(text: bytes, place: int) -> bytes:
    """Return what base64 always has of a text that begins at a place of three bytes."""
    encoded = b64encode(bytes(place) + text)
    return encoded[-(-8 * place // 6) : 8 * (place + len(text)) // 6]


_SIGNS_OF_TABLES: Final = (
    TABLE.encode(),
    *(_base64_of(f'"{TABLE}"'.encode(), place) for place in range(3)),
)
"""Bytes of which a batch or result that names a table has one; see `table_updates` for base64."""


class TableHoldings(Holdings):
    """Tables as the collector of garbage sees them."""

    def __init__(self, files: SharedFiles) -> None:
        self._tables = TableFiles(files)

    def find(self, before: float) -> HoldingsFound:
        tables = list(self._tables.stored())
        # A part is named by manifests alone, and goes once none has it any more.
        parts = self._tables.parts_in(tables)
        old = [
            table
            for table in tables
            if table.written is not None and table.written < before and table.key not in parts
        ]

        def garbage(named: Collection[str]) -> dict[str, list[Any]]:
            unnamed = [table for table in old if table.key not in named]
            return {
                CONDEMNED: [table for table in unnamed if table.condemned is None],
                "tables": [
                    *(table for table in unnamed if table.condemned and table.condemned < before),
                    *(table for table in tables if not table.written and not table.attempts),
                ],
                "attempts": [
                    each for table in tables for each in self._tables.abandoned(table, before)
                ],
            }

        return HoldingsFound({t.key for t in tables if t.written is not None}, old, garbage)

    def keys_in(self, payload: bytes) -> set[str]:
        if not any(sign in payload for sign in _SIGNS_OF_TABLES):
            return set()
        keys = _KEY.findall(payload)
        for encoded in _BASE64.findall(payload):
            for place in range(4):  # the byte before may be one of base64's, too
                text = encoded[place:]
                keys += _KEY.findall(b64decode(text[: len(text) // 4 * 4]))
        return {key.decode() for key in keys}

    def remove(self, garbage: Mapping[str, Sequence[Any]]) -> None:
        for table in garbage.get(CONDEMNED, ()):
            self._tables.condemn(table.workspace, table.key)
        for table in garbage.get("tables", ()):
            self._tables.remove(table)
        for attempt in garbage.get("attempts", ()):
            self._tables.discard(attempt)
