"""Results that are known, looked up in place of a call; and the keys of those that are computed.

A key is a digest of a function's code, of the arguments' names, and of all their values. A function
is pure, so a result under an equal key is what the call would return. Each `_CHECK_EVERY`th
successful look-up of a process is answered by a call nevertheless, so that an impure function is
found.

Evaluators import this on machines without the libraries that `memo` needs.
"""

from collections.abc import Sequence
from mmap import PAGESIZE, mmap
from typing import Any, Final

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3

from rebaser_server.compute.functions.runtimes import code_digest
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.results import REMEMBERED
from rebaser_server.compute.value_buffers import NONE, ValueBuffers
from rebaser_server.compute.work_unit import KEY_BYTES, STRING_TYPE, WorkUnit
from rebaser_server.values.canonical_json import loads

_CHECK_EVERY: Final = 1_000
_FOUND: Final = memoryview(mmap(-1, PAGESIZE)).cast("Q")
"""Number of look-ups that find a result, in memory that this process shares with its children."""
_LARGEST: Final = 1 << 20
"""Maximum bytes of a result that is remembered."""


class _Unknown:
    """Placeholder for a result that is not known."""


UNKNOWN: Final = _Unknown()


class Recall:
    def __init__(self, unit: WorkUnit, buffers: ValueBuffers) -> None:
        self._unit = unit
        self._buffers = buffers
        self._prefixes = [_prefix(unit, *signature) for signature in unit.signatures]
        self._fingerprints: dict[int, bytes] = {}
        """Fingerprints of cells that were given to calls."""
        self.used: set[int] = set()
        """Functions of which results were found."""
        self._keys: dict[int, bytes] = {}
        """Keys of values that are computed."""
        self._formers: dict[int, str] = {}
        """Known results of values that are computed nevertheless."""

    def is_for(self, call: int) -> bool:
        """Whether the results of a signature's function are remembered."""
        return self._prefixes[call] is not None

    def look_up(self, position: int, call: int, refs: Sequence[int]) -> Any:
        """Return the result of a value whose inputs have values; or UNKNOWN: then compute it."""
        prefix = self._prefixes[call]
        if prefix is None:
            return UNKNOWN
        key = blake3(prefix + b"".join(map(self._fingerprint, refs))).digest(KEY_BYTES)
        text = self._known_text(position, key)
        _FOUND[0] += text is not None
        if text is not None and _FOUND[0] % _CHECK_EVERY:
            self.used.add(self._unit.signatures[call][0])
            try:
                return read_only(loads(text))
            except ValueError:  # damaged
                text = None
        if text is not None:
            self._formers[position] = text
        self._keys[position] = key
        return UNKNOWN

    def _fingerprint(self, cell: int) -> bytes:
        found = self._fingerprints.get(cell)
        if found is None:
            found = self._fingerprints[cell] = self._buffers.fingerprint(cell)
        return found

    def _known_text(self, position: int, key: bytes) -> str | None:
        known = self._unit.known_results
        for result in (None if known is None else known[position].as_py()) or ():
            if result["key"] == key:
                return str(result["text"])
        return None

    def changes(self, start: int) -> list[Any]:
        """Return what was found about the values from `start` on, for `take` elsewhere."""
        keys = {position: key for position, key in self._keys.items() if position >= start}
        formers = {position: text for position, text in self._formers.items() if position >= start}
        return [sorted(self.used), keys, formers]

    def take(self, changes: list[Any]) -> None:
        used, keys, formers = changes
        self.used.update(used)
        self._keys.update(keys)
        self._formers.update(formers)

    def remembered(self, end: int) -> pa.Table:
        """Return the results of values before `end` that were computed, as of `REMEMBERED`."""
        kinds = self._buffers.kinds
        positions = np.array(
            sorted(p for p in self._keys if p < end and kinds[p] != NONE), np.int64
        )
        texts = self._buffers.canonical_texts_at(positions)
        fits = pc.less_equal(pc.binary_length(texts), _LARGEST).to_numpy(zero_copy_only=False)
        positions, texts = positions[fits], texts.filter(pa.array(fits))
        formers = [self._formers.get(position) for position in positions.tolist()]
        columns = [
            self._unit.ids.take(pa.array(positions)),
            [self._keys[position] for position in positions.tolist()],
            texts,
            [
                None if former == text else former
                for former, text in zip(formers, texts.to_pylist(), strict=True)
            ]
            if self._formers
            else pa.nulls(len(positions), STRING_TYPE),
        ]
        return pa.table(columns, schema=REMEMBERED)


def _prefix(unit: WorkUnit, function: int, specs: Sequence[tuple[str, int | None]]) -> bytes | None:
    """Return the beginning of the keys of a signature's calls; None: they are not remembered."""
    runtime, code = unit.functions[function]
    digest = code_digest(runtime, code) if runtime and function in unit.remembered else None
    return None if digest is None else blake3(digest + cbor2.dumps(list(specs))).digest()
