"""Evaluates a unit: here, or in forked processes if the unit asks for that."""

import pyarrow as pa

from rebaser_server.compute.evaluate.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluate.evaluation import Evaluation
from rebaser_server.compute.evaluate.forked_evaluation import ForkedEvaluation
from rebaser_server.compute.units.unit_result import encode_result
from rebaser_server.compute.units.work_unit import WorkUnit, count_values


def evaluate(unit: bytes | memoryview) -> pa.Buffer:
    """The `UnitResult` of an encoded `WorkUnit`, encoded.

    A function that raises fails its value and blocks what depends on it, and nothing else;
    likewise one that exceeds the unit's limits. A value is computed if it must be, or if an
    input comes out changed, which is to say: with another value, or with one where there was
    none, or the other way round.
    """
    decoded, count = WorkUnit.decode(unit), count_values(unit)
    evaluation = start_evaluation(decoded)
    evaluation.advance(count)
    if isinstance(evaluation, Evaluation) and evaluation.done < count:
        # In children, which at least do not have the threads that this process has.
        evaluation.end()
        evaluation = ForkedEvaluation(decoded, evaluation)
    while evaluation.done < count:
        evaluation.advance(count)
    evaluation.end()
    return encode_result(evaluation.result())


def start_evaluation(unit: WorkUnit) -> Evaluation | ForkedEvaluation:
    """The evaluation of this unit, of which nothing is computed yet."""
    if unit.limits.is_forked:
        return ForkedEvaluation(unit)
    return Evaluation(unit, CallWatchdog(unit.limits))
