"""What a payload would take in memory if it were decoded: estimated from its bytes, beforehand.

A few octets can say much: an empty array is one in CBOR and 72 in memory. So who reads what others
wrote looks first. The prices are CPython's, with some reserve; `docs/security.md` has figures.
"""

import re
from typing import Final

from rebaser_core.codecs import JSON
from rebaser_core.errors import CostlyMessage

FACTOR: Final = 24
"""Octets of memory for each octet of a payload that are never too many."""

FREE: Final = 64 * 1024 * 1024
"""Octets of memory that are never too many."""

SMALL: Final = 640 * 1024
"""Octets of a payload that cannot cost more than `FREE`, whatever they are."""

_SLOT: Final = 8  # of an item in what it is in
_NUMBER: Final = 32 + _SLOT
_TEXT: Final = 64 + _SLOT  # and its octets
_ARRAY: Final = 72 + _SLOT
_MAP: Final = 208 + _SLOT  # of up to five entries
_EMPTY_MAP: Final = 72 + _SLOT
_ENTRY: Final = 100  # of a larger map: a table is up to four times as large as what is in it
_PAIR: Final = 64  # of an entry while a JSON object is read
_FEW: Final = 5
_SHARED: Final = 1  # octets of a text: one character is the same object wherever it stands

_STEP: Final = 64 * 1024
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_RUN: Final = re.compile(rb'(?:[^"]++|' + _STRING + rb"){1,10000}", re.DOTALL)


def require_affordable(content_type: str, payload: bytes) -> None:
    """Raise `CostlyMessage` for what takes more than `FREE`, and than `FACTOR` times its size.

    The payload may be malformed: it costs no more until the decoder finds that out.
    """
    if len(payload) <= SMALL:
        return
    most = max(FREE, FACTOR * len(payload))
    cost = _of_json(payload, most) if content_type == JSON else _of_cbor(payload, most)
    if cost > most:
        raise CostlyMessage(
            f"{len(payload)} octets that would take more than {most} of memory: too many arrays, "
            "objects or short texts for its size; send it in smaller batches"
        )


def _of_json(payload: bytes, most: int) -> int:
    cost = _of_marks(payload) + len(payload)
    if cost > most:  # perhaps only because of what stands in texts
        cost = _of_marks_outside_texts(payload) + len(payload)
    return cost


def _of_marks_outside_texts(payload: bytes) -> int:
    """In runs of tokens: what is cut out of all at once may take as much as what it guards from."""
    at = cost = 0
    while (run := _RUN.match(payload, at)) is not None:
        cost += _of_marks(_STRINGS.sub(b'""', run.group()))
        at = run.end()
    return cost  # a text without an end is malformed


def _of_marks(text: bytes) -> int:
    """Without white space between them marks are counted best; with it, a little too high."""
    count = text.count
    maps, arrays = count(b"{"), count(b"[")
    inner = count(b",[") + count(b",{")  # these have been paid as numbers
    entries = max(0, count(b":") - _FEW * maps)
    return (
        _NUMBER * count(b",")
        + (_ARRAY + _NUMBER - _SLOT) * arrays
        - (_NUMBER - _SLOT) * (count(b"[]") + inner)
        + (_MAP + _NUMBER - _SLOT) * maps
        - (_MAP - _EMPTY_MAP + _NUMBER - _SLOT) * count(b"{}")
        + _TEXT * count(b'"') // 2
        + (_ENTRY + _PAIR) * entries
    )


def _of_cbor(payload: bytes, most: int) -> int:
    """At least what it costs as soon as that is more than `most`."""
    prices = _PRICES
    at, end, cost = 0, len(payload), 0
    while at < end and cost <= most:
        stop = min(at + _STEP, end)
        while at < stop:
            head = payload[at]
            cost += prices[head]
            step = _STEPS[head]
            if step:
                at += step
            elif head == _SHORT_TEXT and at + 1 < end:  # as every id is
                length = payload[at + 1]
                at += 2 + length
                cost += length
            elif head == _OPEN_MAP:
                prices = _PRICES_IN_OPEN_MAP  # from here on: it does not say how many entries
                at += 1
            else:
                width = 1 << (head & 3)
                length = int.from_bytes(payload[at + 1 : at + 1 + width])
                at += 1 + width
                if head >> 5 == _MAPS:
                    cost += _ENTRY * min(length, end)
                else:
                    at += length
                    cost += min(length, end)
    return cost


_SHORT_TEXT: Final = 0x78
_OPEN_MAP: Final = 0xBF
_BYTES, _TEXTS, _ARRAYS, _MAPS, _TAGS, _OTHERS = range(2, 8)
_IN_HEAD: Final = 24  # arguments below stand in the first byte
_OPEN: Final = 31


def _step(head: int) -> int:
    """From this item to the next; 0 if more than the first byte says so."""
    major, info = head >> 5, head & 31
    if info < _IN_HEAD:
        return 1 + info if major in (_BYTES, _TEXTS) else 1
    if head == _OPEN_MAP:
        return 0
    width = 1 << (info & 3) if info < _IN_HEAD + 4 else 0
    return 0 if width and major in (_BYTES, _TEXTS, _MAPS) else 1 + width


def _price(head: int) -> int:
    major, info = head >> 5, head & 31
    if major in (_BYTES, _TEXTS):
        in_head = info if info < _IN_HEAD else 2
        return _SLOT if in_head <= _SHARED else _TEXT + in_head
    if major == _ARRAYS:
        return _ARRAY
    if major == _MAPS:
        return _MAP + (_ENTRY * info if _FEW < info < _IN_HEAD else 0) if info else _EMPTY_MAP
    if major == _OTHERS:
        return _NUMBER if info in (25, 26, 27) else _SLOT
    shared = head <= _IN_HEAD or major == _TAGS
    return _SLOT if shared else _NUMBER


_STEPS: Final = [_step(head) for head in range(256)]
_PRICES: Final = [_price(head) for head in range(256)]
_PRICES_IN_OPEN_MAP: Final = [
    price + _ENTRY * (head >> 5 == _TEXTS) for head, price in enumerate(_PRICES)
]
