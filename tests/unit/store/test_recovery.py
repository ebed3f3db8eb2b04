"""A damaged checkpoint falls back to the one before it, and the next one supersedes it."""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from rebaser_core.updates import PutValue, RemoveValue
from rebaser_server.runtime.failures import StoreDamaged
from rebaser_server.store.checkpoints import Checkpoints, take_changes
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.checkpoint_writer import CHANGE_SET, ulid
from tests.helpers.random_batches import contents

Damage = Callable[[Path], None]

BEFORE, LAST = 3, 4
"""Commits: the checkpoint that is sound, and the one behind it."""


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-60])


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def zeros_at_the_end(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))


def zeros_at_first(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[len(whole) // 2 :].rjust(len(whole), b"\0"))


def gone(file: Path) -> None:
    file.unlink()


DAMAGES = (empty, cut, zeros, zeros_at_the_end, zeros_at_first, gone)


class Story:
    """A table with checkpoints of the commits 1 to 4, each an edit, as an owner writes them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.checkpoints = Checkpoints(str(root))
        self.graph = Graph()
        self.known: dict[int, object] = {}
        for commit in range(1, LAST + 1):
            self.edit(self.graph, commit)
            self.save(self.graph, commit, base=commit - 1)
            self.known[commit] = contents(self.graph)
        self.log = sorted((root / "change_sets").rglob("_delta_log/*.json"))

    def edit(self, graph: Graph, commit: int) -> None:
        """Each checkpoint has rows that no other has."""
        if commit == 1:
            batch = [PutValue(value_id=ulid(number), value=0) for number in range(9)]
        else:
            batch = [PutValue(value_id=ulid(commit), value=commit)]
        removed = [RemoveValue(value_id=ulid(commit - 1))] if commit > 2 else []
        rebase(graph, commit, [*batch, *removed])

    def save(self, graph: Graph, commit: int, base: int, *, whole: bool = False) -> None:
        changes = take_changes(graph, commit, {"n": commit}, whole=whole, base=base)
        self.checkpoints.save(CHANGE_SET, changes)

    def entry(self, version: int) -> Path:
        return self.log[version]

    def data(self, version: int) -> Path:
        uri = self.checkpoints.uri(CHANGE_SET)
        before = set(DeltaTable(uri, version - 1).file_uris())
        [new] = set(DeltaTable(uri, version).file_uris()) - before
        return Path(new.removeprefix("file://"))

    def require_falls_back(self, to: int, heads: Collection[int] = ()) -> None:
        """Another process loads `to`, goes on to commit 5 and saves it: all is well again.

        `heads`: checkpoints whose metadata may be taken (default: those of `to`).
        """
        self.checkpoints = Checkpoints(str(self.root))
        loaded = self.checkpoints.load(CHANGE_SET)
        assert loaded is not None
        assert loaded.commit == to
        assert contents(loaded.graph) == self.known[to]
        assert loaded.damage
        assert self.checkpoints.metadata(CHANGE_SET) in [{"n": n} for n in heads or [to]]
        for commit in range(to + 1, LAST + 2):
            self.edit(loaded.graph, commit)
        self.edit(self.graph, LAST + 1)

        self.save(loaded.graph, LAST + 1, base=to)

        after = Checkpoints(str(self.root)).load(CHANGE_SET)
        assert after is not None
        assert (after.commit, after.damage) == (LAST + 1, "")
        assert contents(after.graph) == contents(self.graph)
        past = self.checkpoints.load(CHANGE_SET, to)
        assert past is not None
        assert contents(past.graph) == self.known[to]


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_last_data_file_is_damaged(story: Story, damage: Damage) -> None:
    damage(story.data(LAST))

    story.require_falls_back(BEFORE)


@pytest.mark.parametrize("damage", [empty, cut, zeros, zeros_at_the_end, zeros_at_first])
def test_the_last_entry_is_damaged(story: Story, damage: Damage) -> None:
    damage(story.entry(LAST))

    story.require_falls_back(BEFORE)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", [Story.entry, Story.data])
def test_what_lies_before_is_damaged(
    story: Story, damage: Damage, what: Callable[[Story, int], Path]
) -> None:
    """Delta reads an empty entry as one without changes: rows would be missing, silently."""
    damage(what(story, 2))

    story.require_falls_back(1)


def test_several_files_are_damaged(story: Story) -> None:
    empty(story.data(3))
    empty(story.data(LAST))
    empty(story.entry(LAST))

    story.require_falls_back(2)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["*.checkpoint.parquet", "_last_checkpoint"])
def test_the_sum_of_the_log_or_the_hint_at_it_is_damaged(
    story: Story, what: str, damage: Damage
) -> None:
    """The entries say the same: the sum is set aside, and nothing else is lost."""
    DeltaTable(story.checkpoints.uri(CHANGE_SET)).create_checkpoint()
    [file] = story.root.rglob(what)
    damage(file)

    loaded = Checkpoints(str(story.root)).load(CHANGE_SET)

    assert loaded is not None
    assert contents(loaded.graph) == story.known[LAST]
    assert what == "_last_checkpoint" or not list(story.root.rglob(what))


def unnoticed_damages(file: Path) -> Iterator[bytes]:
    """The file with one octet changed that no reader of Parquet complains of: it reads others."""
    whole = file.read_bytes()
    rows = pq.read_table(pa.BufferReader(whole))
    for place in range(len(whole)):
        changed = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
        with suppress(OSError, ValueError, pa.ArrowException):
            if not pq.read_table(pa.BufferReader(changed)).equals(rows):
                yield changed


@pytest.mark.parametrize("which", range(0, 30, 10))
def test_an_octet_is_damaged_that_parquet_does_not_check(story: Story, which: int) -> None:
    file = story.data(LAST)
    file.write_bytes(next(islice(unnoticed_damages(file), which, None)))

    story.require_falls_back(BEFORE, heads=[BEFORE, LAST])


@pytest.mark.parametrize("damage", [empty, zeros, cut])
def test_a_table_without_a_sound_version_says_so_and_is_written_anew(
    story: Story, damage: Damage
) -> None:
    for entry in story.log:
        damage(entry)
    checkpoints = Checkpoints(str(story.root))
    with pytest.raises(StoreDamaged):
        checkpoints.load(CHANGE_SET)

    story.checkpoints = checkpoints
    story.save(story.graph, 5, base=0, whole=True)

    loaded = checkpoints.load(CHANGE_SET)
    assert loaded is not None
    assert contents(loaded.graph) == contents(story.graph)


def test_changes_are_not_added_to_a_table_that_lacks_what_they_change(story: Story) -> None:
    """The file was damaged under a living owner: it writes everything, and nothing is missing."""
    empty(story.data(LAST))
    empty(story.entry(LAST))
    story.edit(story.graph, 5)
    with pytest.raises(StoreDamaged, match="lacks commit 4"):
        story.save(story.graph, 5, base=LAST)

    story.save(story.graph, 5, base=0, whole=True)

    loaded = Checkpoints(str(story.root)).load(CHANGE_SET)
    assert loaded is not None
    assert contents(loaded.graph) == contents(story.graph)


def test_a_repair_deletes_nothing(story: Story) -> None:
    empty(story.entry(3))
    before = {path.name for path in story.root.rglob("*") if path.is_file()}

    story.checkpoints.repair(CHANGE_SET)

    after = {path.name.removesuffix(".set-aside") for path in story.root.rglob("*")}
    assert before <= after
