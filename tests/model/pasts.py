"""A store and a log of different pasts (S-6): NATS restored from an older copy than the store."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Step

Effects = tuple[int, ...]
"""Ids of commits, in the order in which they took effect."""


class Line(NamedTuple):
    """A commit of the change set."""

    sequence: int
    previous: int
    effects: Effects
    """What the state of its writer has with it. The last one is its own id."""


class Log(NamedTuple):
    """A stream that others use, too."""

    lines: tuple[Line, ...] = ()
    ends: int = 0


class State(NamedTuple):
    """One change set, with at most one checkpoint."""

    commits: int
    """That are to come."""
    others: int
    """Commits of other change sets that are to come."""
    restores: int
    log: Log = Log()
    copy: Log = Log()
    """What a backup has of NATS."""
    checkpoint: Line = Line(0, 0, ())
    """The last commit that it has; 0 for none."""
    broken: str = ""


@dataclass(frozen=True)
class Rules:
    by_id: bool = True
    """The log's commit of a checkpoint's sequence has the checkpoint's id."""
    equal: bool = True
    """The first commit behind a checkpoint names the checkpoint's as the one before it."""


@dataclass(frozen=True)
class Pasts:
    """One run at a time: it commits that it takes over, and then loads the state."""

    commits: int = 4
    others: int = 3
    restores: int = 1
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.commits, self.others, self.restores)

    def broken(self, state: State) -> str:
        return state.broken

    def restless(self, _: State) -> str:
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        log = state.log
        if state.others:
            more = log._replace(ends=log.ends + 1)
            after = state._replace(log=more, others=state.others - 1)
            yield Step("another change set's commit is stored", after)
        if log != state.copy and state.restores:
            yield Step("NATS is backed up", state._replace(copy=log))
            restored = state._replace(log=state.copy, restores=state.restores - 1)
            yield Step("NATS is restored from the backup", restored, fault=True)
        if state.commits:
            yield from self._run(state._replace(commits=state.commits - 1))

    def _run(self, state: State) -> Iterator[Step]:
        lines, ends = state.log
        last = lines[-1] if lines else Line(0, 0, ())
        line = Line(ends + 1, last.sequence, (*last.effects, state.commits))
        log = Log((*lines, line), line.sequence)
        effects = self._loaded(state.checkpoint, log.lines)
        after = state._replace(log=log)
        if effects is None:
            yield Step("a run takes over, and refuses the change set", after)
            return
        if effects != line.effects:
            after = after._replace(broken="S3: a state is made of two pasts")
        yield Step("a run takes over", after)
        kept = after._replace(checkpoint=line)
        yield Step("a run takes over, and writes a checkpoint", kept)
        purged = kept._replace(log=Log((line,), line.sequence))
        yield Step("a run takes over, writes a checkpoint and purges the log", purged)

    def _loaded(self, start: Line, lines: tuple[Line, ...]) -> Effects | None:
        """What a run makes of checkpoint and log; None if it refuses."""
        behind = [line for line in lines if line.sequence > start.sequence]
        same = [line for line in lines if line.sequence == start.sequence]
        if not behind and not same:
            return None
        if self.rules.by_id and any(line.effects[-1] != start.effects[-1] for line in same):
            return None
        if behind and (
            behind[0].previous > start.sequence
            or (self.rules.equal and behind[0].previous != start.sequence)
        ):
            return None
        return start.effects + tuple(line.effects[-1] for line in behind)
