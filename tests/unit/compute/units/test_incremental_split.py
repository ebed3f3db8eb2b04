"""A unit evaluated in pieces or in steps comes to the same as at once, wherever that is cut."""

from random import Random

import pytest

from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.evaluation import Evaluation, evaluate
from rebaser_server.compute.results import UnitResult, decode_result
from rebaser_server.compute.work_unit import IncrementalSplit, WorkUnit, offset_positions
from tests.helpers.work_units import unit_from_rows

FUNCTIONS = [
    ("builtin", "sum"),
    ("builtin", "min"),
    ("builtin", "concat"),
    ("builtin", "count"),
    (None, "gone"),
]
WIDEST = 4


def random_blob(rng: Random) -> WorkUnit:
    """Up to forty values, some of which fail and block others, some not reached at all."""
    signatures = [
        (f, [("values", width)]) for f in range(len(FUNCTIONS)) for width in range(WIDEST)
    ]
    outside = rng.randint(1, 5)
    constants = [
        (f"c{n}", rng.random() < 0.8, rng.choice([1, 2, "x", None, 1.5])) for n in range(outside)
    ]
    values = []
    for n in range(rng.randint(0, 40)):
        call = rng.randrange(len(signatures))
        inputs = [~rng.randrange(outside), *([rng.randrange(n)] * 3 if n else [])]
        refs = [rng.choice(inputs) for _ in range(call % WIDEST)]
        status = rng.choice(["ok", "ok", "failed", "blocked", "pending"])
        before = {"ok": rng.choice([0, 1, 2, 3, "x"]), "failed": "f", "blocked": "c0"}.get(status)
        must_compute = status == "pending" or rng.random() < 0.2
        values.append((f"v{n}", call, status, before, must_compute, refs))
    return unit_from_rows(FUNCTIONS, signatures, values, constants)


def in_steps(unit: WorkUnit, rng: Random) -> tuple[int, list[object]]:
    evaluation = Evaluation(unit, CallWatchdog(unit.limits))
    while evaluation.done < len(unit):
        evaluation.advance(rng.randint(1, 12))
    found = evaluation.result()
    return found.recomputed, found.table.to_pylist()


def in_pieces(unit: WorkUnit, rng: Random) -> tuple[int, list[object]]:
    pieces, rows, recomputed = IncrementalSplit(unit), [], 0
    while pieces.done < len(unit):
        start = pieces.done
        piece = pieces.next(rng.randint(1, 12))
        outcome = decode_result(evaluate(piece.encode()))
        changes = offset_positions(outcome.table, start)
        pieces.record(start + len(piece), changes)
        recomputed += outcome.recomputed
        rows += changes.to_pylist()
    return recomputed, rows


@pytest.mark.parametrize("seed", range(20))
def test_pieces_come_to_the_same_as_the_whole(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        unit = random_blob(rng)

        whole: UnitResult = decode_result(evaluate(unit.encode()))

        expected = (whole.recomputed, whole.table.to_pylist())
        assert in_pieces(unit, rng) == expected
        assert in_steps(unit, rng) == expected
