"""Units derived from a unit to find, or to step over, the values that end their evaluator."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from rebaser_server.compute.units.work_unit import WorkUnit

FAILED_RUNTIME: Final = "failed"
"""Of a function that stands in for one that ends its evaluator; the code is the message."""
MAX_CULPRITS: Final = 16
"""In one unit. Where there are more it is not the values."""
TOO_MANY_CULPRITS: Final = f"more than {MAX_CULPRITS} values ended the evaluator"
"""What is said of such a unit, in the text of an error since it comes from another process."""


def prefix(unit: WorkUnit, count: int) -> WorkUnit:
    """The first `count` values of a unit, as a unit."""
    return replace(
        unit,
        ids=unit.ids[:count],
        signature_indices=unit.signature_indices[:count],
        statuses=unit.statuses[:count],
        texts=unit.texts[:count],
        must_compute=unit.must_compute[:count],
        refs=unit.refs[: unit.widths()[:count].sum()],
    )


def with_failures(unit: WorkUnit, messages: Mapping[int, str]) -> WorkUnit:
    """A unit in which some values, by their position, fail with a message instead."""
    functions, signatures = list(unit.functions), list(unit.signatures)
    calls, must_compute = unit.signature_indices.copy(), unit.must_compute.copy()
    fails = np.zeros(len(unit), np.bool_)
    for index, message in messages.items():
        functions.append((FAILED_RUNTIME, message))
        signatures.append((len(functions) - 1, []))
        calls[index], must_compute[index], fails[index] = len(signatures) - 1, True, True
    return replace(
        unit,
        functions=functions,
        signatures=signatures,
        signature_indices=calls,
        must_compute=must_compute,
        refs=unit.refs[~np.repeat(fails, unit.widths())],
    )
