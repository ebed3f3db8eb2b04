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
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.chaos.bank_round import run_bank_round
from tests.chaos.checker import judge
from tests.chaos.history import Event, History, Kind
from tests.chaos.indexed_history import Violation
from tests.chaos.processes import prepare
from tests.chaos.round import Size, run_round
from tests.chaos.scenarios import SCENARIOS, sized


@dataclass(slots=True)
class Figures:
    """Of one round, or of several."""

    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    poison: Counter[str] = field(default_factory=Counter)
    exits: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    """At which daemons were killed, of `deadly_steps.STEPS`."""
    violations: Counter[str] = field(default_factory=Counter)
    rested_after: list[float] = field(default_factory=list)

    def add(self, history: History, violations: list[Violation]) -> None:
        self.rounds += 1
        self.seconds += history.events[-1].at
        for event in history.events:
            _COUNT.get(event.kind, _nothing)(self, event)
        self.counts["change sets"] += len({e.data["change_set"] for e in history.of(Kind.COMMIT)})
        self.counts["commits by an older release"] += _commits_by_older_daemons(history)
        self.violations.update(violation.rule for violation in violations)
        self.rested_after += [
            event.data["rested_after"]
            for event in history.of(Kind.REST)
            if "rested_after" in event.data
        ]

    def text(self) -> str:
        lines = [f"{self.rounds} rounds, {self.seconds:.0f} s"]
        for name in ("counts", "faults", "poison", "exits", "steps", "violations"):
            counter: Counter[str] = getattr(self, name)
            lines.append(
                f"{name}: " + (", ".join(f"{n} {k}" for k, n in sorted(counter.items())) or "none")
            )
        if times := self.rested_after:
            figures = f"median {median(times):.2f} s, worst {max(times):.2f} s"
            lines.append(f"at rest after the last fault: {figures}, of {len(times)}")
        return "\n".join(lines)


def _commits_by_older_daemons(history: History) -> int:
    older = {event.data["name"] for event in history.of(Kind.DAEMON) if event.data.get("older")}
    heads = (event.data["commit"]["control"] for event in history.of(Kind.COMMIT))
    return sum(head["owner"].partition("/")[0] in older for head in heads)


def _nothing(figures: Figures, event: Event) -> None:
    pass


def _sent(figures: Figures, event: Event) -> None:
    figures.counts["requests"] += 1
    if event.data.get("poison"):
        figures.poison[event.data["poison"]] += 1


def _stored(figures: Figures, event: Event) -> None:
    figures.counts["stored again" if event.data["duplicate"] else "stored"] += 1


def _commit(figures: Figures, event: Event) -> None:
    figures.counts["commits"] += 1
    settled = event.data["commit"].get("settled")
    if settled:
        figures.counts[f"{settled['outcome']}"] += 1
        if settled.get("covers") is not None:
            figures.counts["updates committed"] += 1


def _fault(figures: Figures, event: Event) -> None:
    if event.data.get("not_possible"):
        figures.faults[f"{event.data['fault']} not possible"] += 1
    figures.faults[event.data["fault"]] += event.data["phase"] == "begins"


def _daemon(figures: Figures, event: Event) -> None:
    if event.data["what"] == "exited":
        asked = "asked" if event.data["asked"] else "by itself"
        figures.exits[f"{event.data['code']} {asked}"] += 1
    elif event.data["what"] == "hung":
        figures.exits["hung"] += 1
    elif event.data["what"] == "died":
        figures.steps[event.data["step"]] += 1


def _calls(figures: Figures, event: Event) -> None:
    figures.counts["calls of a remembered function"] += event.data["count"]


def _run(figures: Figures, event: Event) -> None:
    if event.data["told"] != "taken":
        figures.counts["runs that lost their task"] += 1


def _counted(name: str):
    def count(figures: Figures, event: Event) -> None:
        figures.counts[name] += 1

    return count


_COUNT = {
    Kind.SENT: _sent,
    Kind.STORED: _stored,
    Kind.COMMIT: _commit,
    Kind.FAULT: _fault,
    Kind.DAEMON: _daemon,
    Kind.REPLY: _counted("replies"),
    Kind.NO_REPLY: _counted("asked again without an answer"),
    Kind.DEAD_LETTER: _counted("dead letters"),
    Kind.UNKNOWN: _counted("never confirmed"),
    Kind.RUN: _run,
    Kind.CALLS: _calls,
    Kind.UNFORESEEN: _counted("unforeseen errors"),
}


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored behind `&`
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # cleans up
    arguments = _arguments()
    if arguments.judge:
        return _judge_again(arguments.judge)
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
                this = size if arguments.bank else sized(size, arguments.scenario, number)
                seed = f"{arguments.seed}.{number}"
                one = run_bank_round if arguments.bank else run_round
                failed |= not _round(seed, this, figures, Path(tools), one)
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
        "--bank",
        action="store_true",
        help="have workers serve accounts that pay each other (default: daemons of value graphs)",
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
    return parser.parse_args()


def _round(
    seed: str,
    size: Size,
    figures: Figures,
    tools: Path,
    one: Callable[..., Coroutine[Any, Any, None]],
) -> bool:
    directory = Path(tempfile.mkdtemp(prefix=f"rebaser-chaos-{seed}-"))
    history = History()
    try:
        asyncio.run(one(seed, directory, size, history, tools))
    except Exception:  # noqa: BLE001 - one round of many: the others are worth as much
        figures.violations["broken off"] += 1
        _say(f"round {seed} broke off: {traceback.format_exc()}  kept: {directory}")
        return False
    finally:
        history.save(directory / "history.jsonl")
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


def _judge_again(path: Path) -> int:
    history, figures = History.load(path), Figures()
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
