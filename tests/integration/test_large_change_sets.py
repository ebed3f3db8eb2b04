"""Change sets of more values than one answer takes: nothing that is asked about them is refused."""

from pathlib import Path

import pyarrow as pa
import pytest

from rebaser_client import Draft, builtin
from rebaser_client.change_set import WorkspaceHandle
from rebaser_server.commands.support.arguments import Exit
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment


async def shop_of(deployment: Deployment, count: int) -> WorkspaceHandle:
    """A workspace of so many sources."""
    shop = await deployment.client.workspace("shop").create()
    for first in range(0, count, 500_000):
        numbers = range(first, min(first + 500_000, count))
        names = [f"net/{number}" for number in numbers]
        await shop.enqueue_table(
            pa.table({"id": [f"01K9{n:022d}" for n in numbers], "name": names, "value": [*numbers]})
        )
    return shop


@pytest.mark.parametrize("count", [150_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_waiting_returns_what_failed_in_a_change_set_of_any_size(
    deployment: Deployment, tmp_path: Path, count: int
) -> None:
    """The first of many failures are listed, with their number, and not all values are read."""
    await deployment.start()
    shop = await shop_of(deployment, count)
    given = Commands(deployment)

    async with shop.edit() as g:
        g.source("rate", 2)
        g.value("gross", builtin("product"), "net/1", "rate")
    sound = g.outcome
    async with shop.edit() as bad:
        bad.source("text", "x")
        for number in range(1_200):
            bad.value(f"bad/{number}", builtin("product"), f"net/{number}", "text")
        bad.value("top", builtin("sum"), "bad/1")
    async with shop.edit() as other:
        other.source("rate", 3)
    settled = await shop.settled()

    assert (sound.failed, sound.blocked, sound.failed.total) == ((), (), 0)
    assert (len(bad.failed), bad.failed.total) == (1_000, 1_200)
    assert repr(bad.failed).endswith(" and 200 more")
    assert [value.name for value in bad.outcome.blocked] == ["top"]
    assert (other.failed, other.outcome.settlement.failed_before.total) == ((), 1_200)
    assert (len(settled.failed), settled.failed.total) == (1_000, 1_200)

    (tmp_path / "graph.yaml").write_text("sources: {rate: 4}\n")
    told = await given.tell("load", "shop", str(tmp_path / "graph.yaml"), "--yes", "--wait")
    assert "1,200 values of this change set had failed before" in told
    (tmp_path / "graph.yaml").write_text(
        "values:\n  top: {function: sum, inputs: [bad/2]}\n  bad/3: {function: sum, inputs: [text]}"
    )
    arguments = ("load", "shop", str(tmp_path / "graph.yaml"), "--yes", "--wait")
    await given.tell(*arguments, code=Exit.VALUES_FAILED)
    told = await given.tell("values", "set", "shop", "text", "5", "--wait")
    assert "its values are up to date" in told


@pytest.mark.long
async def test_values_that_do_not_fit_into_one_answer_come_in_pages(deployment: Deployment) -> None:
    """All of one commit, though others change values meanwhile."""
    await deployment.start()
    shop = await shop_of(deployment, 150_000)

    values = await shop.values()
    draft = Draft()
    draft.source("net/1", 1)
    plan = await shop.plan(draft, prune=True)

    assert [*values] == sorted(f"01K9{n:022d}" for n in range(150_000))
    assert values["net/149999"].value == 149_999
    assert (len(plan.changes), plan.unchanged) == (149_999, 1)
