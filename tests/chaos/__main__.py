"""`python -m tests.chaos`: rounds of chaos from a seed for some minutes, and what came of them."""

import argparse
import asyncio
import itertools
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.chaos.checker import judge
from tests.chaos.history import History, Kind
from tests.chaos.list_append import save_operations
from tests.chaos.processes import prepare
from tests.chaos.round import Size, run_round
from tests.chaos.scenarios import SCENARIOS, sized
from tests.chaos.statistics import Figures


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored behind `&`
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # cleans up
    arguments = _arguments()
    if arguments.judge:
        return _judge_again(arguments.judge, arguments.export)
    size = Size(
        window=arguments.window,
        faults=arguments.faults,
        kinds=tuple(arguments.kinds),
        daemons=arguments.daemons,
        lease=arguments.lease,
        cluster=arguments.cluster,
        older=arguments.older and arguments.older.resolve(),
    )
    figures, failed = Figures(), False
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="rebaser-chaos-tools-") as tools:
        prepare(Path(tools))
        try:
            for number in itertools.count(arguments.round):
                this = sized(size, arguments.scenario, number)
                seed = f"{arguments.seed}.{number}"
                failed |= not _round(seed, this, figures, arguments.export, Path(tools))
                if time.monotonic() >= end:
                    break
        finally:
            _say(figures.text())
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Run rounds of chaos: daemons and clients under faults that follow from a "
        "seed. Prints the violations of each round and totals at the end.",
    )
    parser.add_argument("--seed", default="1", help="any text (default: %(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="time for rounds (default: one round)"
    )
    parser.add_argument("--round", type=int, default=0, help="first round (default: %(default)s)")
    parser.add_argument(
        "--window",
        type=float,
        default=Size.window,
        help="seconds of faults in a round (default: %(default)g)",
    )
    parser.add_argument(
        "--faults", type=int, default=Size.faults, help="faults in a round (default: %(default)s)"
    )
    parser.add_argument(
        "--kinds", nargs="*", default=(), help="kinds of faults to use (default: all)"
    )
    parser.add_argument(
        "--daemons", type=int, default=Size.daemons, help="daemons (default: %(default)s)"
    )
    parser.add_argument(
        "--lease", type=float, default=Size.lease, help="ack wait in seconds (default: %(default)g)"
    )
    parser.add_argument(
        "--cluster", action="store_true", help="use three NATS servers and three replicas"
    )
    parser.add_argument(
        "--scenario", choices=SCENARIOS, help="scenario to run (default: a mixture of all)"
    )
    parser.add_argument(
        "--older",
        type=Path,
        metavar="DIRECTORY",
        help="checkout of an older release, with an environment in .venv, for the scenario "
        "upgrade (default: none)",
    )
    parser.add_argument(
        "--judge",
        type=Path,
        metavar="HISTORY",
        help="check a saved history instead of running rounds (default: none)",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="DIRECTORY",
        help="write the operations of each round there, for Elle's list-append (default: none)",
    )
    return parser.parse_args()


def _round(seed: str, size: Size, figures: Figures, export: Path | None, tools: Path) -> bool:
    directory = Path(tempfile.mkdtemp(prefix=f"rebaser-chaos-{seed}-"))
    history = History()
    try:
        asyncio.run(run_round(seed, directory, size, history, tools))
    except Exception:  # noqa: BLE001 - one round of many: the others are worth as much
        figures.violations["broken off"] += 1
        _say(f"round {seed} broke off: {traceback.format_exc()}  kept: {directory}")
        return False
    finally:
        history.save(directory / "history.jsonl")
    _export(history, export, f"round-{seed}")
    violations = judge(history)
    figures.add(history, violations)
    spent = history.events[-1].at
    _say(f"round {seed}: {spent:.0f} s, {len(history.events)} events, {len(violations)} violations")
    for violation in violations[:20]:
        _say(f"  {violation}")
    for event in history.of(Kind.REST):
        for change_set, why in event.data.get("stuck", {}).items():
            _say(f"  stuck: {change_set}: {why}")
    for event in history.of(Kind.UNFORESEEN):
        _say(f"  unforeseen in {event.data['daemon']}: {event.data['exception'][-200:]}")
    if violations:
        _say(f"  kept: {directory}")
    else:
        shutil.rmtree(directory)
    return not violations


def _export(history: History, directory: Path | None, name: str) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        save_operations(history, directory / f"{name}.jsonl")


def _judge_again(path: Path, export: Path | None) -> int:
    history, figures = History.load(path), Figures()
    _export(history, export, path.stem)
    violations = judge(history)
    figures.add(history, violations)
    for violation in violations:
        _say(f"  {violation}")
    _say(figures.text())
    return int(bool(violations))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
