"""What outlasts a power cut (S-7): files that commits name, checkpoints, the log's purge."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.explorer import Step

File = Literal["cached", "on disk", "damaged"]
"""Where its octets are; damaged: they are others, or none."""


class Checkpoint(NamedTuple):
    commit: int
    file: File
    counts: bool = False


class State(NamedTuple):
    """One change set. The log itself outlasts everything, as NATS does that syncs always."""

    cuts: int
    damages: int
    errors: int
    """Checkpoints that may be written otherwise than meant."""
    placed: File | None = None
    """The file that the next commit will name."""
    log: tuple[File, ...] = ()
    """Of each commit the file that it names, also of those that were purged."""
    purged: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()


@dataclass(frozen=True)
class Rules:
    files_first: bool = True
    """A file is on the disk before the commit that names it is written."""
    synced: bool = True
    """A checkpoint counts once its file is on the disk."""
    read_back: bool = True
    """A checkpoint counts once its file was read back, and has the octets that were written."""
    one_more: bool = True
    """The log is purged up to the checkpoint before the last that counts, and no further."""


@dataclass(frozen=True)
class PowerCuts:
    """A run that commits and writes checkpoints; files are cached until they are synced."""

    commits: int = 3
    checkpoints: int = 3
    cuts: int = 1
    damages: int = 1
    errors: int = 1
    rules: Rules = Rules()

    def initial(self) -> State:
        return State(self.cuts, self.damages, self.errors)

    def broken(self, state: State) -> str:
        starts = [c.commit for c in state.checkpoints if c.file != "damaged"]
        for start in [*starts, *([] if state.purged else [0])]:
            if start >= state.purged and "damaged" not in state.log[start:]:
                return ""
        return "S1: no state can be made of checkpoints and log"

    def restless(self, _: State) -> str:
        return ""

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._commit(state)
        for number, checkpoint in enumerate(state.checkpoints):
            yield from self._continue(state, number, checkpoint)
        if len(state.checkpoints) < self.checkpoints and state.log:
            new = Checkpoint(len(state.log), "cached")
            after = state._replace(checkpoints=(*state.checkpoints, new))
            yield Step(f"a checkpoint of commit {new.commit} is written", after)
            if state.errors:
                wrong = (*state.checkpoints, new._replace(file="damaged"))
                after = state._replace(checkpoints=wrong, errors=state.errors - 1)
                yield Step("a checkpoint is written otherwise than meant", after, fault=True)
        counted = [c.commit for c in state.checkpoints if c.counts]
        keep = 2 if self.rules.one_more else 1
        if len(counted) >= keep and counted[-keep] > state.purged:
            yield Step("the log is purged", state._replace(purged=counted[-keep]))
        if state.cuts:
            yield Step("the power is cut", _cut(state), fault=True)

    def _commit(self, state: State) -> Iterator[Step]:
        if state.placed is None:
            if len(state.log) < self.commits:
                yield Step("a file is placed", state._replace(placed="cached"))
            return
        if state.placed == "cached":
            yield Step("the file is synced", state._replace(placed="on disk"))
        if state.placed == "on disk" or not self.rules.files_first:
            after = state._replace(placed=None, log=(*state.log, state.placed))
            yield Step("a commit names the file", after)

    def _continue(self, state: State, number: int, checkpoint: Checkpoint) -> Iterator[Step]:
        def with_it(changed: Checkpoint) -> State:
            before, after = state.checkpoints[:number], state.checkpoints[number + 1 :]
            return state._replace(checkpoints=(*before, changed, *after))

        if checkpoint.file == "cached":
            synced = with_it(checkpoint._replace(file="on disk"))
            yield Step(f"checkpoint {number} is synced", synced)
        if self._may_count(checkpoint) and not checkpoint.counts:
            counts = with_it(checkpoint._replace(counts=True))
            yield Step(f"checkpoint {number} counts", counts)
        if checkpoint.counts and checkpoint.file == "on disk" and state.damages:
            damaged = with_it(checkpoint._replace(file="damaged"))
            after = damaged._replace(damages=state.damages - 1)
            yield Step(f"checkpoint {number} is damaged", after, fault=True)

    def _may_count(self, checkpoint: Checkpoint) -> bool:
        match checkpoint.file:
            case "on disk":
                return True
            case "cached":
                return not self.rules.synced
            case "damaged":
                return not self.rules.read_back


def _cut(state: State) -> State:
    """What was cached is gone; whoever comes after counts the checkpoints that it can read."""

    def left(file: File) -> File:
        return "damaged" if file == "cached" else file

    files = [left(checkpoint.file) for checkpoint in state.checkpoints]
    kept = [
        Checkpoint(checkpoint.commit, file, counts=file == "on disk")
        for checkpoint, file in zip(state.checkpoints, files, strict=True)
    ]
    return state._replace(
        cuts=state.cuts - 1,
        placed=None,
        log=tuple(map(left, state.log)),
        checkpoints=tuple(kept),
    )
