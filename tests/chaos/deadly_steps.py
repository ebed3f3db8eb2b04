"""Steps from results, or tables, to their commit and publication that kill a daemon of a round.

A daemon that reaches a step dies if the file that `VARIABLE` names has the step in it.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rebaser_core.commits import CommitV2
from rebaser_server.commit_log.log import CommitLog
from rebaser_server.compute import memo
from rebaser_server.compute.memo import Memo
from rebaser_server.files import MEMO, SharedFiles
from rebaser_server.store.publications import Publications
from rebaser_server.tables import Attempt, Manifest, TableFiles, Written

VARIABLE: Final = "CHAOS_DEADLY_STEP"
STEPS: Final = (
    "computed, not remembered",
    "a remembered result half written",
    "a remembered result written, without its name",
    "remembered, not stored beside the log",
    "stored beside the log, not committed",
    "committed",
    "remembered results merged, no file deleted",
    "remembered results merged, a file deleted",
)
TABLE_STEPS: Final = (
    "a table written, without its manifest",
    "a table there, not committed",
    "an upload written, without its manifest",
    "an upload there, not committed",
    "files of a version published, without its entry",
    "a version published, not noted",
)


def reach(step: str) -> None:
    """Die if this is the step to die at."""
    place = Path(os.environ.get(VARIABLE, "/dev/null"))
    if place.exists() and place.read_text() == step:
        os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Have this process, and those forked from it, reach all steps; merge files when they are few.

    Runs before anything else does, for `sitecustomize`.
    """
    memo.MAX_FILES, memo._TIDIED_EVERY = 8, 4  # type: ignore[misc]
    append, remember, put, delete = CommitLog.append, Memo.put, SharedFiles.put, SharedFiles.delete

    async def appending(log: CommitLog, lines: Sequence[CommitV2], *more: Any) -> list[int]:
        has_results = any(line.settled and line.settled.covers is not None for line in lines)
        if has_results:
            reach(STEPS[4])
        sequences = await append(log, lines, *more)
        if has_results:
            reach(STEPS[5])
        return sequences

    def remembering(self: Memo, workspace: str, results: pa.Table) -> None:
        reach(STEPS[0])
        remember(self, workspace, results)
        reach(STEPS[3])

    def putting(files: SharedFiles, path: str, payload: Any, **more: Any) -> None:
        def write(file: pa.NativeFile) -> None:
            file.write(payload[: len(payload) // 2])
            file.flush()
            reach(STEPS[1])
            file.write(payload[len(payload) // 2 :])
            file.flush()
            reach(STEPS[2])

        put(files, path, write if path.startswith(f"{MEMO}/") else payload, **more)

    def deleting(files: SharedFiles, path: str) -> None:
        is_remembered = path.startswith(f"{MEMO}/")
        if is_remembered:
            reach(STEPS[6])
        delete(files, path)
        if is_remembered:
            reach(STEPS[7])

    CommitLog.append = appending  # type: ignore[method-assign]
    Memo.put = remembering  # type: ignore[method-assign]
    SharedFiles.put, SharedFiles.delete = putting, deleting  # type: ignore[method-assign]
    _arm_tables()


def _arm_tables() -> None:
    finish = TableFiles.finish

    def finishing(tables: TableFiles, attempt: Attempt, rows: Written) -> Manifest:
        is_upload = rows.content == attempt.key[:32]
        written, there = TABLE_STEPS[2:4] if is_upload else TABLE_STEPS[:2]
        reach(written)
        manifest = finish(tables, attempt, rows)
        reach(there)
        return manifest

    TableFiles.finish = finishing  # type: ignore[method-assign]
    bring, publish = Publications._bring, Publications._publish

    def bringing(self: Publications, *what: Any) -> list[dict[str, Any]]:
        added = bring(self, *what)
        reach(TABLE_STEPS[4])
        return added

    def publishing(self: Publications, *what: Any) -> tuple[int, bool]:
        number, is_new = publish(self, *what)
        if is_new:
            reach(TABLE_STEPS[5])
        return number, is_new

    Publications._bring = bringing  # type: ignore[method-assign]
    Publications._publish = publishing  # type: ignore[method-assign]
