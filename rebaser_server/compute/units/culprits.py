"""Blobs made of a blob to find, or to step over, the values that cannot be computed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rebaser_server.compute.units.work_unit import Blob

FAILED_RUNTIME: Final = "failed"
"""Of a function that stands in for one that ends its evaluator; the code is the message."""
MOST_CULPRITS: Final = 16
"""In one blob. Where there are more it is not the values."""
TOO_MANY: Final = f"more than {MOST_CULPRITS} values ended the evaluator"
"""What is said of such a blob, in the text of an error since it comes from another process."""


def prefix(blob: Blob, count: int) -> Blob:
    """The first `count` values of a blob, as a blob."""
    return replace(
        blob,
        ids=blob.ids[:count],
        calls=blob.calls[:count],
        statuses=blob.statuses[:count],
        texts=blob.texts[:count],
        forced=blob.forced[:count],
        refs=blob.refs[: blob.widths()[:count].sum()],
    )


def failing(blob: Blob, messages: Mapping[int, str]) -> Blob:
    """A blob in which some values, by their position, fail with a message instead."""
    functions, signatures = list(blob.functions), list(blob.signatures)
    calls, forced = blob.calls.copy(), blob.forced.copy()
    fails = np.zeros(len(blob), np.bool_)
    for index, message in messages.items():
        functions.append((FAILED_RUNTIME, message))
        signatures.append((len(functions) - 1, []))
        calls[index], forced[index], fails[index] = len(signatures) - 1, True, True
    return replace(
        blob,
        functions=functions,
        signatures=signatures,
        calls=calls,
        forced=forced,
        refs=blob.refs[~np.repeat(fails, blob.widths())],
    )
