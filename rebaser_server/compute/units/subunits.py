"""Blobs in another order, and blobs of some of a blob's values."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.units.work_unit import Blob


def levels(blob: Blob) -> NDArray[np.int64]:
    """How many values of the blob each has below it, on the longest path."""
    found: list[int] = []
    refs, end = blob.refs.tolist(), 0
    for width in blob.widths().tolist():
        start, end = end, end + width
        found.append(1 + max((found[ref] for ref in refs[start:end] if ref >= 0), default=-1))
    return np.array(found, np.int64)


def by_level(blob: Blob) -> tuple[Blob, NDArray[np.int64], list[int]]:
    """The blob in the order of its levels, each value's place in the old one, and the levels' ends.

    Costs about a microsecond a value.
    """
    level = levels(blob)
    order = np.lexsort((blob.calls, level))
    places = np.empty(len(blob), np.int32)
    places[order] = np.arange(len(blob))
    refs = _refs_of(blob, order)
    own = refs >= 0
    refs[own] = places[refs[own]]
    moved = _taken(blob, order, refs)
    return moved, order, np.cumsum(np.bincount(level)).tolist()


def independent(blob: Blob, places: NDArray[Any]) -> Blob:
    """Some values of a blob, none of which takes another of the blob, and what they take."""
    refs = _refs_of(blob, places)
    constants, positions = np.unique(~refs, return_inverse=True)
    return replace(
        _taken(blob, places, ~positions.astype(np.int32)),
        constant_ids=blob.constant_ids.take(constants),
        constant_known=blob.constant_known[constants],
        constant_texts=blob.constant_texts.take(constants),
    )


def _refs_of(blob: Blob, places: NDArray[Any]) -> NDArray[np.int32]:
    """The refs of these values, in their order."""
    widths = blob.widths()
    starts = np.cumsum(widths) - widths
    taken = widths[places]
    ends = np.cumsum(taken)
    within = np.arange(int(taken.sum())) - np.repeat(ends - taken, taken)
    refs: NDArray[np.int32] = blob.refs[np.repeat(starts[places], taken) + within]
    return refs


def _taken(blob: Blob, places: NDArray[Any], refs: NDArray[np.int32]) -> Blob:
    return replace(
        blob,
        ids=blob.ids.take(places),
        calls=blob.calls[places],
        statuses=blob.statuses[places],
        texts=blob.texts.take(places),
        forced=blob.forced[places],
        refs=refs,
    )
