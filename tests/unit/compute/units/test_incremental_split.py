"""A blob evaluated in pieces or in steps comes to the same as at once, wherever that is cut."""

from random import Random

import pytest

from rebaser_server.compute.evaluate.call_watchdog import Watch
from rebaser_server.compute.evaluate.evaluator import Evaluation, evaluate
from rebaser_server.compute.units.incremental_split import Pieces, shifted
from rebaser_server.compute.units.unit_result import Outcome, decode_outcome
from rebaser_server.compute.units.work_unit import Blob

FUNCTIONS = [
    ("builtin", "sum"),
    ("builtin", "min"),
    ("builtin", "concat"),
    ("builtin", "count"),
    (None, "gone"),
]
WIDEST = 4


def random_blob(rng: Random) -> Blob:
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
        forced = status == "pending" or rng.random() < 0.2
        values.append((f"v{n}", call, status, before, forced, refs))
    return Blob.of(FUNCTIONS, signatures, values, constants)


def in_steps(blob: Blob, rng: Random) -> tuple[int, list[object]]:
    evaluation = Evaluation(blob, Watch(blob.limits))
    while evaluation.done < len(blob):
        evaluation.advance(rng.randint(1, 12))
    found = evaluation.found()
    return found.recomputed, found.table.to_pylist()


def in_pieces(blob: Blob, rng: Random) -> tuple[int, list[object]]:
    pieces, rows, recomputed = Pieces(blob), [], 0
    while pieces.done < len(blob):
        start = pieces.done
        piece = pieces.next(rng.randint(1, 12))
        outcome = decode_outcome(evaluate(piece.encode()))
        changes = shifted(outcome.table, start)
        pieces.settle(start + len(piece), changes)
        recomputed += outcome.recomputed
        rows += changes.to_pylist()
    return recomputed, rows


@pytest.mark.parametrize("seed", range(20))
def test_pieces_come_to_the_same_as_the_whole(seed: int) -> None:
    rng = Random(seed)
    for _ in range(30):
        blob = random_blob(rng)

        whole: Outcome = decode_outcome(evaluate(blob.encode()))

        expected = (whole.recomputed, whole.table.to_pylist())
        assert in_pieces(blob, rng) == expected
        assert in_steps(blob, rng) == expected
