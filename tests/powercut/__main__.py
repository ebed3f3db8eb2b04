"""`python -m tests.powercut`: power cuts at moments that a seed decides, and what came of them."""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.chaos.functions import install
from tests.powercut.aftermath import restart
from tests.powercut.figures import CutFigures
from tests.powercut.life import Conditions, Cut, Life, live
from tests.powercut.machines import SYNC
from tests.powercut.verdict import Verdict, decide
from tests.powercut.volume import lacked

_INSIDE: Final = "POWERCUT_DIRECTORY"
"""Variable: set in the process whose mounts nobody else sees, and which end with it."""
_HISTORY: Final = "history.jsonl"
"""What a cut with violations leaves."""
_SHOWN: Final = 5  # of many violations


def main() -> int:
    arguments = _arguments()
    if missing := lacked():
        _say(f"no power was cut: this machine lacks {': '.join(missing)}")
        return 1
    if _INSIDE not in os.environ:
        return _run_inside()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored behind `&`
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # cleans up
    figures, failed, made = CutFigures(), False, 0
    try:
        while made < arguments.cuts:
            count = min(arguments.cuts_a_life, arguments.cuts - made)
            seed = f"{arguments.seed}.{arguments.life + made // arguments.cuts_a_life}"
            conditions = Conditions(
                seed,
                servers=arguments.servers,
                sync=arguments.sync,
                alone=arguments.alone,
                spark=arguments.spark,
                tables=arguments.tables,
                window=arguments.window,
            )
            verdicts = asyncio.run(_cuts(conditions, count, arguments.jobs))
            for verdict in verdicts:
                figures.add(verdict)
                failed |= bool(verdict.violations)
            made += count
            _say(figures.line(seed))
    finally:
        _say(figures.text())
    return int(failed and arguments.sync == "always")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.powercut",
        description="Cut the power of NATS, daemons and store at moments that a seed decides, "
        "start all on what the cut left, and judge it. Takes root and loop devices. Exit code 1 if "
        "anything was violated with --sync always; with the default, losses are figures.",
    )
    parser.add_argument("--seed", default="1", help="any text (default: %(default)s)")
    parser.add_argument("--cuts", type=int, default=10, help="how many (default: %(default)s)")
    parser.add_argument(
        "--servers", type=int, choices=(1, 3), default=1, help="NATS servers (default: 1)"
    )
    parser.add_argument(
        "--sync", choices=SYNC, default="always", help="NATS's sync interval (default: always)"
    )
    parser.add_argument(
        "--alone", action="store_true", help="cut the power of one of three servers at a time"
    )
    parser.add_argument("--spark", action="store_true", help="run every update on Spark")
    parser.add_argument("--tables", action="store_true", help="have values that are tables, too")
    parser.add_argument(
        "--window",
        type=float,
        default=Conditions.window,
        help="seconds of a life in which clients ask (default: %(default)g)",
    )
    parser.add_argument("--life", type=int, default=0, help="first life (default: %(default)s)")
    parser.add_argument(
        "--cuts-a-life", type=int, help="cuts of one life (default: 20; with --alone 4)"
    )
    parser.add_argument(
        "--jobs", type=int, default=6, help="cuts judged at a time (default: %(default)s)"
    )
    arguments = parser.parse_args()
    # A server that starts again takes seconds in which the others may have no majority.
    arguments.cuts_a_life = arguments.cuts_a_life or (4 if arguments.alone else 20)
    return arguments


def _run_inside() -> int:
    """Run this again with mounts of its own, and with the functions that values are made with."""
    directory = tempfile.mkdtemp(prefix="rebaser-powercut-")
    path = [str(install(Path(directory))), os.environ.get("PYTHONPATH")]
    environment = {_INSIDE: directory, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = ["unshare", "--mount", sys.executable, "-m", "tests.powercut", *sys.argv[1:]]
    with subprocess.Popen(command, env=os.environ | environment) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it has heard that, too
        code = process.wait()
    if not any(Path(directory).glob("life-*")):
        shutil.rmtree(directory)
    return code


async def _cuts(conditions: Conditions, count: int, jobs: int) -> list[Verdict]:
    directory = _new(Path(os.environ[_INSIDE], f"life-{conditions.seed}"))
    try:
        life = await live(conditions, directory, count)
        turns = asyncio.Semaphore(jobs)
        return await asyncio.gather(*(_judged(life, cut, directory, turns) for cut in life.cuts))
    finally:
        if not any(directory.glob(f"*/{_HISTORY}")):
            shutil.rmtree(directory)


async def _judged(life: Life, cut: Cut, directory: Path, turns: asyncio.Semaphore) -> Verdict:
    async with turns:
        own = _new(directory / f"after-{cut.number}")
        verdict = decide(life, cut, await restart(life, cut, own))
    if verdict.violations:
        verdict.history.save(own / _HISTORY)
        kept = f"history in {own}, images in {cut.images}"
        _say(f"  cut {life.conditions.seed}/{cut.number} at {cut.at:.2f} s, {kept}")
    else:
        shutil.rmtree(cut.images)
    for violation in verdict.violations[:_SHOWN]:
        _say(f"    {violation}")
    return verdict


def _new(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
