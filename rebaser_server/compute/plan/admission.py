"""Bounds the text of a unit, which its evaluator holds in memory whole."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rebaser_server.compute.units.buffers import strings
from rebaser_server.compute.units.culprits import FAILED_RUNTIME
from rebaser_server.compute.units.work_unit import PENDING, CallLimits, WorkUnit
from rebaser_server.values.graph import ReadableGraph

MAX_UNIT_BYTES: Final = 512 << 20
"""Bytes of text of a unit, unless the settings have another number."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What a unit of work may take."""

    calls: CallLimits = CallLimits()
    """Of each call of a function in it."""
    text_bytes: int = MAX_UNIT_BYTES
    """Of its values and constants; values that need more of it together are planned to fail."""


def text_bytes_of_parts(
    graph: ReadableGraph,
    indices: NDArray[np.int32],
    parts: NDArray[np.int32],
    outside: NDArray[np.int32],
    dependents: NDArray[np.int32],
) -> NDArray[np.float64]:
    """Bytes of text that each part needs: of its values, and of each constant that it takes.

    Args:
        graph: of the values.
        indices: of the values.
        parts: of each value.
        outside: what is taken from outside, and for each
        dependents: the value that takes it.
    """
    count = int(parts.max()) + 1
    own = np.bincount(parts, graph.text_sizes(indices), count)
    pairs = np.unique(parts[dependents].astype(np.int64) << 32 | outside)
    constants = graph.text_sizes(pairs & 0xFFFFFFFF)
    return (own + np.bincount(pairs >> 32, constants, count)).astype(np.float64)


def split_by_bytes(
    order: NDArray[np.int64], needed: NDArray[np.float64], most: int
) -> list[NDArray[np.int64]]:
    """Split parts, in this order, into groups that need at most `most` bytes each."""
    ends, total = [], 0.0
    for position, each in enumerate(needed[order].tolist()):
        total += each
        if total > most and position:
            ends.append(position)
            total = each
    return np.split(order, ends)


def refused_unit(
    graph: ReadableGraph, indices: NDArray[np.int32], needed: float, most: int
) -> WorkUnit:
    """A unit in which all these values fail, since what they need does not go into one."""
    count = len(indices)
    message = (
        f"not computed: values that depend on each other need {needed / _MIB:,.4g} MiB of text "
        f"together; at most {most / _MIB:,.4g} are allowed (REBASER_DVU_WORK_UNIT_BYTES)"
    )
    return WorkUnit(
        [(FAILED_RUNTIME, message)],
        [(0, [])],
        graph.ids_of(indices),
        np.zeros(count, np.int32),
        np.full(count, PENDING, np.uint8),
        strings([""]).take(np.zeros(count, np.int64)),
        np.ones(count, np.bool_),
        limits=CallLimits(),
    )
