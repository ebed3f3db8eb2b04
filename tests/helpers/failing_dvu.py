"""A Rebaser of whose updates one step fails, or ends it.

As a program (`failing_dvu.py "planning" serve`) it is that Rebaser.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Never

import pyarrow as pa

from rebaser_server.commands import cli
from rebaser_server.compute import plan
from rebaser_server.compute.results import StoredResult, UnitResult
from rebaser_server.graph_application import dvu

PLANNING, DYING, GATHERING = STEPS = ("planning", "dying", "gathering")


def failing(step: str) -> Sequence[str | Path]:
    """The command of one."""
    return (sys.executable, Path(__file__), step)


def raising(error: Exception) -> Callable[..., Never]:
    def fail(*_: object, **__: object) -> Never:
        raise error

    return fail


def _die(*_: object, **__: object) -> Never:
    """As the kernel ends a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


def arm(step: str) -> None:
    if step == PLANNING:
        plan.plan = raising(MemoryError("no room for a plan"))
    elif step == DYING:
        plan.plan = _die
    elif step == GATHERING:
        collect = dvu.collect

        def gather(outcomes: Sequence[UnitResult | StoredResult], target: dvu.ResultTarget) -> Any:
            if any(outcome.recomputed for outcome in outcomes):
                raise pa.ArrowInvalid("too large")
            return collect(outcomes, target)

        dvu.collect = gather


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
