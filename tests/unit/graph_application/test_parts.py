"""Parts of a result: what is there while the rest is computed, committed once."""

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from rebaser_server.compute.functions.runtimes import code_version
from rebaser_server.compute.results import SCHEMA, RunStore, UnitResult
from rebaser_server.compute.work_unit import OK
from rebaser_server.files import SharedFiles
from rebaser_server.graph_application import dvu
from rebaser_server.graph_application.dvu import Parts, ResultTarget
from rebaser_server.processor.application import JobResult
from tests.helpers.batches import new_id
from tests.helpers.eventually import eventually


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dvu, "_PART_EVERY", 0.01)


@pytest.fixture
def target(tmp_path: object) -> ResultTarget:
    store = RunStore(SharedFiles(str(tmp_path)), "ab" * 32)
    return ResultTarget(None, store)  # type: ignore[arg-type] # no batch is stored here


IDS = {letter: new_id() for letter in "abcde"}
LETTERS = {value_id: letter for letter, value_id in IDS.items()}


def result(*letters: str) -> UnitResult:
    ids = [IDS[letter] for letter in letters]
    columns = [ids, [OK] * len(ids), ["1"] * len(ids), [*range(len(ids))]]
    return UnitResult(len(ids), pa.table(columns, schema=SCHEMA))


class Commits:
    """Parts that were committed, as far as they are wanted."""

    def __init__(self, *, is_wanted: bool = True) -> None:
        self.ids: list[list[str]] = []
        self.cancelled = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self._is_wanted = is_wanted

    async def __call__(self, part: JobResult) -> bool:
        self.ids.append([LETTERS[update.value_id] for update in part.batch.updates])  # type: ignore[union-attr]
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._is_wanted


async def test_what_was_committed_in_parts_is_not_in_the_rest(target: ResultTarget) -> None:
    parts, commits = Parts(), Commits()

    async with parts.committed_by(commits, target):
        parts.add(result("a", "b"))
        await eventually(lambda: len(commits.ids) == 1)
        parts.add(result("c"))
        await eventually(lambda: len(commits.ids) == 2)
        await asyncio.sleep(0.05)
    rest = parts.collected([result("a", "b"), result("c", "d"), result("e")], target)

    assert commits.ids == [["a", "b"], ["c"]]
    assert [LETTERS[update.value_id] for update in rest.updates] == ["d", "e"]
    assert (len(rest), rest.changed, rest.recomputed) == (2, 5, 5)


async def test_a_part_names_the_code_that_it_was_computed_with(target: ResultTarget) -> None:
    """Who computes the rest may have another."""
    parts, codes = Parts(), list[str]()

    async def commit(part: JobResult) -> bool:
        codes.append(part.code("", is_last=False))
        codes.append(part.code(f"{codes[0]}0", is_last=False))
        return True

    async with parts.committed_by(commit, target):
        parts.add(replace(result("a"), costs={("builtin", "sum"): (1, 0.001)}))
        await eventually(lambda: len(codes) == 2)

    own = code_version("builtin", "sum")
    assert own is not None
    assert codes == [f"{own.name} {own.version} {own.digest}", f"{own.name} {own.version} mixed"]


async def test_without_a_part_all_is_in_the_rest(target: ResultTarget) -> None:
    parts, commits = Parts(), Commits()

    async with parts.committed_by(commits, target):
        await asyncio.sleep(0.05)
    rest = parts.collected([result("a")], target)

    assert (commits.ids, len(rest), rest.changed) == ([], 1, 1)


async def test_very_many_results_wait_for_the_rest(
    target: ResultTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They travel in files, which belong to the whole result."""
    monkeypatch.setattr(dvu, "_LARGEST_PART", 2)
    parts, commits = Parts(), Commits()

    async with parts.committed_by(commits, target):
        parts.add(result("a", "b", "c"))
        await asyncio.sleep(0.05)
        parts.add(result("d"))
        await eventually(lambda: commits.ids == [["d"]])
    rest = parts.collected([result("a", "b", "c", "d")], target)

    assert len(rest) == 3


@pytest.mark.parametrize("fails", [False, True])
async def test_a_part_that_is_being_committed_is_waited_for(
    target: ResultTarget, fails: bool
) -> None:
    """Also if the job fails: a commit that is cancelled would end the run."""
    parts, commits = Parts(), Commits()
    commits.goes_on.clear()

    async def compute() -> None:
        async with parts.committed_by(commits, target):
            parts.add(result("a"))
            await eventually(lambda: bool(commits.ids))
            if fails:
                raise LookupError

    computing = asyncio.create_task(compute())
    await asyncio.wait([computing], timeout=0.2)
    assert not computing.done()
    commits.goes_on.set()
    await asyncio.wait([computing])

    assert isinstance(computing.exception(), LookupError) == fails
    assert commits.cancelled == 0
    assert len(parts.collected([result("a", "b")], target)) == 1


async def test_no_part_follows_one_that_is_not_wanted(target: ResultTarget) -> None:
    """The claim is gone; what was found is refused as a whole, too."""
    parts, commits = Parts(), Commits(is_wanted=False)

    async with parts.committed_by(commits, target):
        parts.add(result("a"))
        await eventually(lambda: bool(commits.ids))
        parts.add(result("b"))
        await asyncio.sleep(0.05)
    rest = parts.collected([result("a", "b")], target)

    assert commits.ids == [["a"]]
    assert len(rest) == 2


async def test_a_part_that_cannot_be_committed_ends_the_job(target: ResultTarget) -> None:
    """With its own error, which says whether the run goes on."""
    parts = Parts()

    async def refuse(_: JobResult) -> bool:
        raise OSError("the store is away")

    async def compute() -> None:
        async with parts.committed_by(refuse, target):
            parts.add(result("a"))
            await asyncio.sleep(30)

    with pytest.raises(OSError, match="the store is away"):
        await compute()
