"""Values and history read over NATS: by a client that has neither Delta nor the store."""

import asyncio
import itertools
import os
from pathlib import Path

import pytest

from rebaser_client.client import RebaserClient
from rebaser_client.draft import builtin
from rebaser_client.errors import NoSuchValue, ReadRefused
from rebaser_client.reader import ValueSet
from rebaser_core.commits import RequestOutcome
from rebaser_core.errors import Unreachable
from rebaser_core.ids import ChangeSet
from rebaser_server.commit_log.state_loader import StateCache
from rebaser_server.queries import values as queries_values
from rebaser_server.queries.query_service import QUEUE
from tests.helpers.batches import Batch, ExampleGraph, new_id, put, set_to
from tests.helpers.blocking_function import Gate
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets


async def commit_of(deployment: Deployment, change_set: ChangeSet, batch: Batch) -> int:
    _, reply = await deployment.client.enqueue_updates_with_reply(*change_set, batch)
    return (await reply).status.success.commit


def plain(values: ValueSet) -> dict[str, object]:
    return {value_id: value.value for value_id, value in values.items()}


async def test_a_read_after_the_reply_sees_the_requests_values(deployment: Deployment) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await deployment.start()
    reader = deployment.client.change_set(*change_set)

    for number in range(5):
        batch = values.define() if not number else [set_to(values.net, number)]
        commit = await commit_of(deployment, change_set, batch)
        found = await reader.values(values.net)
        assert found.commit >= commit
        assert found[values.net].value == (number or 1)

    await deployment.at_rest()
    assert (await reader.values(values.gross))[values.gross].value == 6


async def test_a_reader_learns_whether_computed_values_are_up_to_date(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [change_set], gate = new_change_sets(1), Gate(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(gate.path), prepend=os.pathsep)
    await deployment.start()
    reader, operator = deployment.client.change_set(*change_set), Commands(deployment)
    await commit_of(deployment, change_set, gate.define(1))
    await deployment.at_rest()
    first = await reader.values("gated")

    gate.close()
    commit = await commit_of(deployment, change_set, [set_to(gate.source, 2)])
    during, then = await reader.values("gated"), await reader.values("gated", at=commit)
    told = await operator.tell("values", *change_set, "gated")
    rows = await operator.read("values", *change_set)
    gate.open()
    await deployment.at_rest()
    after = await reader.values("gated")

    assert (first.may_be_stale, during.may_be_stale, then.may_be_stale, after.may_be_stale) == (
        False,
        True,
        True,
        False,
    )
    assert (during["gated"].value, after["gated"].value) == (1, 2)
    assert "an update is due" in told
    assert {row["id"] for row in rows if row["due"]} == {gate.value}
    assert "an update is due" not in await operator.tell("values", *change_set, "gated")


async def test_a_subtree_comes_by_levels_and_by_name(deployment: Deployment) -> None:
    """A chain of sums: each is computed from the one before."""
    [change_set] = new_change_sets(1)
    await deployment.start()
    func, ids = new_id(), [new_id() for _ in range(5)]
    chain = [
        {
            "putValue": {
                "valueId": later,
                "name": f"level {number}",
                "funcId": func,
                "inputs": {"values": [earlier]},
            }
        }
        for number, (earlier, later) in enumerate(itertools.pairwise(ids), 1)
    ]
    sums = {"putFunc": {"funcId": func, "name": "sum", "runtime": "builtin", "code": "sum"}}
    await commit_of(deployment, change_set, [sums, put(ids[0], 7), *chain])
    await deployment.at_rest()
    reader = deployment.client.change_set(*change_set)

    below = await reader.values("level 2", inputs=1)
    above = await reader.values("level 2", dependents=9)
    both = await reader.values("level 2", "nobody", inputs=9, dependents=1, missing_ok=True)

    assert plain(below) == dict.fromkeys([ids[2], ids[1]], 7)
    assert list(above) == [ids[2], ids[3], ids[4]]
    assert set(both) == set(ids[:4])
    assert both.missing == ["nobody"]
    assert both["level 2"].inputs == {"values": [ids[1]]}
    assert set(await reader.values()) == set(ids)


async def test_the_past_is_read_and_listed(deployment: Deployment) -> None:
    [change_set], value = new_change_sets(1), new_id()
    await deployment.start()
    commits = [
        await commit_of(
            deployment, change_set, [put(value, n), *([set_to(new_id(), 0)] * (n == 1))]
        )
        for n in range(3)
    ]
    reader = deployment.client.change_set(*change_set)

    for number, commit in enumerate(commits):
        assert (await reader.values(value, at=commit))[value].value == number
    with pytest.raises(ReadRefused, match="ends at commit"):
        await reader.values(value, at=10**6)
    log = await reader.log(last=2)
    assert [entry.commit for entry in log] == commits[1:]
    assert [entry.outcome for entry in log] == [RequestOutcome.APPLIED] * 2
    assert log[0].updates == {"putValue": 1}
    assert [correction.code for correction in log[0].corrections] == ["missing-value"]
    assert [entry.commit for entry in await reader.log(after=commits[1])] == commits[2:]


async def test_a_star_in_a_name_stands_for_any_text(deployment: Deployment) -> None:
    await deployment.start()
    shop = await deployment.client.workspace("prices").create()
    async with shop.edit() as draft:
        for name in ("net/A1", "net/B2", "net/A1/old", "rate"):
            draft.source(name, 1)
        draft.value("gross", builtin("sum"), "net/B2", "rate")

    def names(found: ValueSet) -> set[str | None]:
        return {value.name for value in found.values()}

    assert names(await shop.values("net/*")) == {"net/A1", "net/B2", "net/A1/old"}
    assert names(await shop.values("*/A1", "rate")) == {"net/A1", "rate"}
    assert names(await shop.values("net/B*", dependents=1)) == {"net/B2", "gross"}
    assert (await shop.values("tax/*", "rate", missing_ok=True)).missing == ["tax/*"]
    with pytest.raises(NoSuchValue, match=r"there is no value 'tax/\*' in prices"):
        await shop.values("tax/*")


async def test_an_answer_larger_than_a_message_comes_whole(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    await deployment.start()
    ids = [new_id() for _ in range(400)]
    await commit_of(deployment, change_set, [put(i, str(n) * 5_000) for n, i in enumerate(ids)])

    found = await deployment.client.change_set(*change_set).values()

    assert plain(found) == {i: str(n) * 5_000 for n, i in enumerate(ids)}


async def test_more_than_an_answer_takes_comes_in_pages(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    [change_set] = new_change_sets(1)
    monkeypatch.setattr(queries_values, "MAX_VALUES", 10)
    async with deployment.answering().serve():
        await deployment.start()
        ids = [new_id() for _ in range(21)]
        await commit_of(deployment, change_set, [put(i, n) for n, i in enumerate(ids)])
        for daemon in deployment.daemons:
            daemon.kill()

        found = await deployment.client.change_set(*change_set).values()

    assert plain(found) == {i: n for n, i in enumerate(ids)}


async def test_change_sets_asked_for_long_ago_are_forgotten(
    deployment: Deployment,
) -> None:
    """What is kept for the next question is bounded, and what is not is loaded again."""
    change_sets = new_change_sets(4)
    await deployment.start()
    for change_set in change_sets:
        await commit_of(deployment, change_set, [put(new_id(), n) for n in range(8)])
    await deployment.at_rest()
    for daemon in deployment.daemons:
        daemon.kill()
    cache = StateCache(60_000)
    served = deployment.answering(cache=cache)
    async with served.serve():
        readers = [deployment.client.change_set(*change_set) for change_set in change_sets]
        for _ in range(2):
            answers = await asyncio.gather(*(reader.values() for reader in readers))
            assert [len(answer) for answer in answers] == [8] * 4
        assert len(cache) <= 3
        assert cache.total <= 60_000


async def test_functions_are_read_by_name_or_id_with_how_many_values_each_computes(
    deployment: Deployment,
) -> None:
    """Also those that compute none."""
    [change_set], graph, idle = new_change_sets(1), ExampleGraph(), new_id()
    await deployment.start()
    unused = {"putFunc": {"funcId": idle, "name": "idle", "runtime": "cel", "code": "x * 2"}}
    await commit_of(deployment, change_set, [*graph.define(), unused])
    reader = deployment.client.change_set(*change_set)

    every = await reader.functions()
    some = await reader.functions("idle", every[0].id, "nobody")

    assert sorted((each.name, each.runtime, each.users) for each in every) == [
        ("idle", "cel", 0),
        ("sum", "builtin", 1),
    ]
    assert [each.id for each in some] == [each.id for each in every]
    assert await reader.functions("nobody") == []


async def test_a_question_that_went_to_one_who_died_is_asked_again(deployment: Deployment) -> None:
    """As NATS gives it to him for as long as it takes his connection for open."""
    [change_set], value, died = new_change_sets(1), new_id(), asyncio.Event()
    await deployment.start()
    await commit_of(deployment, change_set, [put(value, 1)])
    subject = deployment.streams.queries(change_set, "values")
    dying = await deployment.nc.subscribe(subject, queue=QUEUE)

    async def die() -> None:
        await dying.next_msg(timeout=None)
        await dying.unsubscribe()
        died.set()

    death = asyncio.create_task(die())
    while not died.is_set():
        assert plain(await deployment.client.change_set(*change_set).values()) == {value: 1}
    await death


async def test_without_a_rebaser_the_reader_fails_at_once(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)

    with pytest.raises(Unreachable):
        await deployment.client.change_set(*change_set).values()


async def test_reading_works_with_a_prefix_and_in_json(deployment: Deployment) -> None:
    [change_set], value = new_change_sets(1), new_id()
    await deployment.start()
    await commit_of(deployment, change_set, [put(value, {"ä": [1.0, None]})])

    async with RebaserClient.on(
        deployment.nc, deployment.js, content_type="application/json"
    ) as client:
        found = await client.change_set(*change_set).values(value)

    assert found[value].value == {"ä": [1.0, None]}
