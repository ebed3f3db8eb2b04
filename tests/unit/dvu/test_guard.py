"""A blob in a child of its own, which may crash."""

import faulthandler

from rebaser_server.dvu.blob import Blob, Limits
from rebaser_server.dvu.evaluate import evaluate
from rebaser_server.dvu.outcome import decode_outcome


def test_a_process_that_dumps_its_tracebacks_later_can_have_a_guarded_child() -> None:
    """A fork has the lock of the thread that does it, and not the thread."""
    blob = Blob.of(
        [("builtin", "identity")],
        [(0, [("value", None)])],
        [("copy", 0, "pending", None, True, [-1])],
        [("one", True, 1)],
        Limits(seconds=5, is_guarded=True),
    )
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        outcome = decode_outcome(evaluate(blob.encode()))
    finally:
        faulthandler.cancel_dump_traceback_later()

    assert outcome.results == [("copy", "ok", 1)]
