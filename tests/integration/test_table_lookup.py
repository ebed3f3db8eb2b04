"""A few values of a large change set without an owner are read from its table alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.queries import ValuesQueryV2, ValuesReplyV2
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.graph_application.state_machine import checkpoints_of
from rebaser_server.queries.query_service import QueryBounds
from rebaser_server.queries.value_queries import ValueQueries
from rebaser_server.queries.values import TooManyValues
from tests.helpers.batches import Batch, new_id, set_to
from tests.helpers.deployment import Deployment, new_change_sets

ALL = QueryBounds(loaded_rows=0)
"""Every table is large enough."""
NONE = QueryBounds(loaded_rows=1 << 60)


async def ask(served: ValueQueries, change_set: ChangeSet, *which: str) -> ValuesReplyV2:
    query = ValuesQueryV2(
        id=RequestId.from_str("01JZ8M3Q7V0000000000000003"),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        which=list(which),
    )
    [reply] = [reply async for reply in served.values.replies(query, {})]
    return reply


class Shop:
    """Values of each kind, some of them renamed or removed by a later request."""

    def __init__(self) -> None:
        self.net, self.tax, self.gross, self.bad, self.behind, self.gone = (
            new_id() for _ in range(6)
        )
        self.add, self.parse = new_id(), new_id()

    def define(self) -> Batch:
        return [
            {"putFunc": {"funcId": self.add, "name": "sum", "runtime": "builtin", "code": "sum"}},
            {"putFunc": {"funcId": self.parse, "name": "x", "runtime": "cel", "code": "int(net)"}},
            {"putValue": {"valueId": self.net, "name": "net", "value": "words"}},
            {"putValue": {"valueId": self.tax, "name": "tax", "value": 19}},
            {"putValue": {"valueId": self.gone, "name": "gone", "value": 1}},
            self._computed(self.gross, "gross", self.add, {"values": [self.tax, self.tax]}),
            self._computed(self.bad, "bad", self.parse, {"net": self.net}),
            self._computed(self.behind, "behind", self.add, {"values": [self.bad]}),
        ]

    def edit(self) -> Batch:
        return [
            {"putValue": {"valueId": self.tax, "name": "vat", "value": 7}},
            {"removeValue": {"valueId": self.gone}},
        ]

    def _computed(self, value_id: str, name: str, func_id: str, inputs: Any) -> dict[str, Any]:
        return {
            "putValue": {"valueId": value_id, "name": name, "funcId": func_id, "inputs": inputs}
        }


async def test_the_table_answers_as_the_change_set_does(deployment: Deployment) -> None:
    """By id, by name, by both, with names that it has no longer; nothing is loaded for it."""
    [change_set], shop = new_change_sets(1), Shop()
    await deployment.start()
    for batch in (shop.define(), shop.edit()):
        _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
        assert (await reply).status.success
        await deployment.at_rest()
    looked_up, read = StateCache(1 << 30), StateCache(1 << 30)
    from_table, loaded = deployment.answering(ALL, looked_up), deployment.answering(NONE, read)

    for which in (
        [shop.net],
        ["gross", "vat"],
        ["tax", "gone", shop.gone],
        ["bad", shop.behind, "nothing", shop.bad],
    ):
        assert await ask(from_table, change_set, *which) == await ask(loaded, change_set, *which)

    assert (len(looked_up), len(read)) == (0, 1)
    failed = await ask(from_table, change_set, "bad", "behind")
    assert [value.status for value in failed.values] == ["failed", "blocked"]


async def test_commits_behind_the_table_are_seen(deployment: Deployment) -> None:
    """Where the log goes on behind the last checkpoint, the change set is loaded."""
    [change_set], shop = new_change_sets(1), Shop()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, shop.define())
    await deployment.at_rest()
    cache = StateCache(1 << 30)
    served = deployment.answering(ALL, cache)
    before = await ask(served, change_set, shop.tax)
    await deployment.start(QUIET_PERIOD="60")
    for daemon in deployment.daemons[:-1]:
        daemon.kill()
    _, reply = await deployment.client.enqueue_updates_with_reply(
        *change_set, [set_to(shop.tax, 8)]
    )
    assert (await reply).status.success

    after = await ask(served, change_set, shop.tax)

    assert [before.values[0].value, after.values[0].value] == [19, 8]
    assert after.commit > before.commit
    assert len(cache) == 1


def empty_the_log(table: Path) -> None:
    max(table.glob("_delta_log/*.json")).write_bytes(b"")


def empty_the_files(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.write_bytes(b"")


def delete_the_files(table: Path) -> None:
    for file in table.glob("*.parquet"):
        file.unlink()


@pytest.mark.parametrize("damage", [empty_the_log, empty_the_files, delete_the_files])
async def test_of_a_damaged_table_the_change_set_is_loaded(
    deployment: Deployment, damage: Callable[[Path], None]
) -> None:
    """Whether the process has looked into the table before or not."""
    [change_set], shop = new_change_sets(1), Shop()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, shop.define())
    await deployment.at_rest()
    caches = StateCache(1 << 30), StateCache(1 << 30)
    warm, cold = (deployment.answering(ALL, cache) for cache in caches)
    before = await ask(warm, change_set, shop.tax, "gross")
    assert len(caches[0]) == 0

    damage(Path(checkpoints_of(deployment.archive(change_set)).uri(change_set)))

    for served, cache in zip((warm, cold), caches, strict=True):
        assert await ask(served, change_set, shop.tax, "gross") == before
        assert len(cache) == 1


async def test_more_octets_than_a_reply_takes_are_refused(deployment: Deployment) -> None:
    [change_set], shop = new_change_sets(1), Shop()
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, shop.define())
    await deployment.at_rest()

    with pytest.raises(TooManyValues, match="more than 200 bytes"):
        await ask(
            deployment.answering(QueryBounds(loaded_rows=0, answer_bytes=200)),
            change_set,
            "net",
            "tax",
        )
