"""Linked lists of numbered edges, one for each input, the newest first."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def link_edges(newest: NDArray[Any], refs: NDArray[np.int32], first: int) -> NDArray[np.int32]:
    """Link new edges to these inputs, numbered from `first`; the next edge of each, or -1.

    `newest` has the number of each input's newest edge, or -1, and is brought up to date.
    """
    order = np.argsort(refs, kind="stable")
    inputs, edges = refs[order], (order + first).astype(np.int32)
    is_first = np.ones(len(refs), np.bool_)
    np.not_equal(inputs[1:], inputs[:-1], out=is_first[1:])
    following = np.empty(len(refs), np.int32)
    following[order] = np.where(is_first, newest[inputs], np.roll(edges, 1))
    is_last = np.roll(is_first, -1)
    newest[inputs[is_last]] = edges[is_last]
    return following
