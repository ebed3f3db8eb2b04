"""A unit in a child of its own, which may crash."""

import faulthandler
import os
import select
from pathlib import Path

import pytest

from rebaser_server.compute.evaluation import evaluate, start_evaluation
from rebaser_server.compute.isolation import IDLE, ChildEnded, ask_child, shared_position
from rebaser_server.compute.results import decode_result
from rebaser_server.compute.work_unit import CallLimits
from tests.helpers.graph_builder import install
from tests.helpers.work_units import unit_from_rows


def test_a_process_that_dumps_its_tracebacks_later_can_have_a_guarded_child() -> None:
    """A fork has the lock of the thread that does it, and not the thread."""
    unit = unit_from_rows(
        [("builtin", "identity")],
        [(0, [("value", None)])],
        [("copy", 0, "pending", None, True, [-1])],
        [("one", True, 1)],
        CallLimits(seconds=5, is_forked=True),
    )
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        outcome = decode_result(evaluate(unit.encode()))
    finally:
        faulthandler.cancel_dump_traceback_later()

    assert outcome.value_results == [("copy", "ok", 1)]


def test_a_value_that_ends_its_evaluator_fails_alone_wherever_the_steps_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\ndef next(value): return os._exit(3) if value == 4 else value + 1"
    install(tmp_path, "ending", code, {"next": "ending:next"})
    monkeypatch.syspath_prepend(tmp_path)
    values = [(f"v{n}", 0, "pending", None, True, [n - 1 if n % 6 else -1]) for n in range(8)]
    unit = unit_from_rows(
        [("python", "next")],
        [(0, [("value", None)])],
        values,
        [("one", True, 1)],
        CallLimits(is_forked=True),
    )
    evaluation = start_evaluation(unit)

    evaluation.advance(3)
    evaluation.advance(1)
    evaluation.advance(10)

    ended = "computing it ended the evaluator: exit code 3"
    found = evaluation.result()
    assert found.value_results == [
        ("v0", "ok", 2),
        ("v1", "ok", 3),
        ("v2", "ok", 4),
        ("v3", "failed", ended),
        ("v4", "blocked", "v3"),
        ("v5", "blocked", "v4"),
        ("v6", "ok", 2),
        ("v7", "ok", 3),
    ]
    assert found.table.column("place").to_pylist() == list(range(8))


def test_a_child_is_not_blamed_for_the_value_at_which_another_was_killed() -> None:
    position = shared_position()
    position[0] = 3

    with pytest.raises(ChildEnded) as end:
        ask_child(lambda: os._exit(1), position, 0)

    assert end.value.position == IDLE


def test_an_answer_that_comes_while_the_kernel_looks_whether_its_child_has_ended_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poll = select.poll

    class Late:
        """Poll that looks at the pipe a moment before the child's end, as the kernel may."""

        def __init__(self) -> None:
            self._polled, self._watched = poll(), list[int]()

        def register(self, descriptor: int, events: int) -> None:
            self._watched.append(descriptor)
            self._polled.register(descriptor, events)

        def poll(self, timeout: float) -> list[tuple[int, int]]:
            if len(self._watched) == 1:
                return self._polled.poll(timeout)
            end = poll()
            end.register(self._watched[-1], select.POLLIN)
            return end.poll(10_000)

    monkeypatch.setattr(select, "poll", Late)

    assert ask_child(lambda: b"answer", shared_position(), 0) == b"answer"
