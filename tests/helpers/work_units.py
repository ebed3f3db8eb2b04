"""A work unit from rows, as a test writes them, and its evaluation in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluation import Evaluation
from rebaser_server.compute.results import UnitResult
from rebaser_server.compute.work_unit import (
    STATUSES,
    STRING_TYPE,
    ArgumentSpec,
    CallLimits,
    WorkUnit,
    contiguous,
    strings,
)
from rebaser_server.values.canonical_json import dumps


def unit_from_rows(
    functions: Sequence[tuple[str | None, str]],
    signatures: Sequence[tuple[int, list[ArgumentSpec]]],
    values: Sequence[tuple[str, int, str, Any, bool, Sequence[int]]],
    constants: Sequence[tuple[str, bool, Any]] = (),
    limits: CallLimits = CallLimits(),
) -> WorkUnit:
    """A unit from rows: id, signature, word of its status, value or message, forced, refs."""
    ids, calls, words, before, must_compute, refs = (
        zip(*values, strict=True) if values else [()] * 6
    )
    known = zip(words, before, strict=True)
    return WorkUnit(
        list(functions),
        list(signatures),
        pa.array(ids, STRING_TYPE),
        contiguous(calls, np.int32),
        contiguous([STATUSES.index(word) for word in words], np.uint8),
        strings([dumps(data) if word == "ok" else data or "" for word, data in known]),
        contiguous(must_compute, np.bool_),
        contiguous([ref for each in refs for ref in each], np.int32),
        strings([value_id for value_id, _, _ in constants]),
        contiguous([is_known for _, is_known, _ in constants], np.bool_),
        strings([dumps(data) for _, _, data in constants]),
        limits,
    )


def evaluated(unit: WorkUnit, *, one_by_one: bool = False) -> UnitResult:
    """The result of a unit; `one_by_one`: without functions that take many values at once."""
    evaluation = Evaluation(unit, CallWatchdog(unit.limits))
    if one_by_one:
        evaluation.call_one_by_one()
    evaluation.advance(len(unit))
    return evaluation.result()
