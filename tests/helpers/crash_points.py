"""A Rebaser that is killed at one step of a request's way.

As a program (`crash_points.py "before its commit" serve`) it is that Rebaser.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebaser_core.commits import CommitV2
from rebaser_server.commands import cli
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.processor.dvu import DvuCommitter

BEFORE_COMMIT, AFTER_COMMIT, BEFORE_RESULT = STEPS = (
    "before its commit",
    "after its commit, before its reply",
    "once its values are computed, before they are in line",
)


def doomed(step: str) -> Sequence[str | Path]:
    """The command of one."""
    return (sys.executable, Path(__file__), step)


def arm(step: str) -> None:
    """Have the process die at the next such step."""
    append = CommitLog.append

    async def deadly(log: CommitLog, lines: Sequence[CommitV2], *more: Any) -> list[int]:
        settles = any(line.settled for line in lines)
        if settles and step == BEFORE_COMMIT:
            _die()
        sequences = await append(log, lines, *more)
        if settles and step == AFTER_COMMIT:
            _die()
        return sequences

    CommitLog.append = deadly  # type: ignore[method-assign]
    if step == BEFORE_RESULT:
        DvuCommitter.commit = _die  # type: ignore[method-assign, assignment]


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
