"""Graphs written by name: edited, planned, branched and applied; no id is ever typed."""

import pyarrow as pa
import pytest

from rebaser_client import (
    AlreadyRegistered,
    ChangeSetHandle,
    Draft,
    InvalidDraft,
    NoSuchChangeSet,
    NoSuchValue,
    RebaserClient,
    TooLarge,
    WorkspaceHandle,
    builtin,
    cel,
    plan,
)
from rebaser_core.calls import service_id
from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.registry import Registry, new_workspace
from tests.helpers.batches import limits
from tests.helpers.deployment import Deployment

ADD = builtin("sum", name="add")


def shop(g: Draft, net: object = 100) -> None:
    bought = g.source("net", net)
    g.value("gross", ADD, bought, g.source("tax", 19))


async def new_shop(deployment: Deployment) -> WorkspaceHandle:
    await deployment.start()
    return await deployment.client.workspace("shop").create()


async def plain(change_set: ChangeSetHandle) -> dict[str, object]:
    values = await change_set.values()
    return {values[value_id].name: values[value_id].value for value_id in values}


async def test_a_graph_is_edited_branched_and_applied_by_name(deployment: Deployment) -> None:
    """Running the same program again sends nothing, and says what it would send."""
    workspace = await new_shop(deployment)
    again = await deployment.client.workspace("shop").create(exist_ok=True)
    assert await again.ids() == await workspace.ids()

    async with workspace.edit() as first:
        shop(first)
        with pytest.raises(InvalidDraft, match="once the body"):
            assert first.plan
    async with workspace.edit() as second:
        shop(second)
    assert await plain(workspace) == {"net": 100, "tax": 19, "gross": 119}
    assert (first.plan.count("added"), first.failed) == (3, ())
    assert (bool(second.plan), second.outcome) == (False, None)

    branch = await workspace.fork("winter")
    asked = []
    async with branch.edit(confirm=asked.append) as unconfirmed:
        shop(unconfirmed, 90)
    assert [plan.summary() for plan in asked] == ["0 added, 1 changed, 0 removed, 2 as they are"]
    assert (unconfirmed.outcome, unconfirmed.failed) == (None, ())

    assert (await branch.load(unconfirmed, wait="computed")).failed == ()
    assert (await plain(branch))["gross"] == 109
    assert (await plain(workspace))["gross"] == 119
    await branch.apply()
    assert (await workspace.settled()).failed == ()
    assert await plain(workspace) == {"net": 90, "tax": 19, "gross": 109}

    async with workspace.edit(prune=True) as less:
        less.value("gross", ADD, less.source("net", "text"))
    assert await plain(workspace) == {"net": "text", "gross": None}
    assert [value.name for value in less.failed] == ["gross"]
    assert [step async for step in workspace.progress()] != []


async def test_a_creation_that_broke_off_is_completed(deployment: Deployment) -> None:
    """Creation by the same name completes it, so that it can be forked; a service gets no head."""
    registry, begun = Registry(deployment.streams), WorkspaceId()
    await registry.create_workspace(new_workspace("shop", begun, ChangeSetId(), None).record)
    orders = new_workspace("orders", service_id("orders"), ChangeSetId(), None).record
    await registry.create_workspace(orders.model_copy(update={"id": RequestId()}))

    shop = await deployment.client.workspace("shop").create(exist_ok=True)
    service = await deployment.client.workspace("orders").create(exist_ok=True)

    assert (await shop.ids()).workspace_id == begun
    assert (await shop.describe()).name == "head"
    with pytest.raises(NoSuchChangeSet):
        await service.describe()


async def test_what_cannot_be_loaded_is_refused_and_nothing_is_sent(
    deployment: Deployment,
) -> None:
    """A name that is unknown or taken, a body that raises, an input that does not exist."""
    workspace, client = await new_shop(deployment), deployment.client

    with pytest.raises(NoSuchChangeSet, match="shpo"):
        await client.workspace("shpo").values()
    with pytest.raises(AlreadyRegistered, match="exist_ok=True"):
        await client.workspace("shop").create()
    with pytest.raises(ZeroDivisionError):
        async with workspace.edit() as g:
            g.source("net", 1 / 0)
    with pytest.raises(InvalidDraft, match="no value is called so: define it"):
        async with workspace.edit() as g:
            g.value("twice", cel("net * 2"), net="net")

    assert await workspace.plan(Draft()) == await workspace.plan(Draft(), prune=True)
    assert len(await workspace.values()) == 0


async def test_many_names_are_read_in_several_questions(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a family from a table is loaded by one batch."""
    monkeypatch.setattr(plan, "NAMES_AT_ONCE", 7)
    workspace = await new_shop(deployment)
    rows = [{"sku": f"A{n}", "net": n} for n in range(30)]

    async with workspace.edit() as g:
        net = g.sources("net/{sku}", rows, "net")
        g.values("twice/{sku}", cel("net * 2"), rows, net=net)
        g.value("total", ADD, net)
    async with workspace.edit() as again:
        again.definitions.update(g.definitions)

    assert g.plan.count("added") == 61
    assert again.outcome is None
    values = await workspace.values("twice/A29", "total")
    assert [values[name].value for name in ("twice/A29", "total")] == [58, 435]


async def test_a_cycle_with_what_is_there_is_refused_and_nothing_is_sent(
    deployment: Deployment,
) -> None:
    """Over values that the draft does not name."""
    workspace = await new_shop(deployment)
    async with workspace.edit() as first:
        shop(first)
        first.value("with fee", ADD, "gross")
        first.value("price", ADD, "with fee")
    before = [entry.request for entry in await workspace.log()]
    back = Draft()
    back.value("gross", ADD, "net", "price")

    with pytest.raises(InvalidDraft, match=r"gross -> price -> with fee -> gross"):
        await workspace.load(back)

    assert [entry.request for entry in await workspace.log()] == before


async def test_what_a_notebook_shows_says_what_it_is(deployment: Deployment) -> None:
    """Names instead of addresses in memory; an unknown name is refused, with similar ones."""
    workspace = await new_shop(deployment)
    async with workspace.edit() as g:
        shop(g)

    values = await workspace.values("net")

    assert repr(workspace) == "<WorkspaceHandle 'shop'>"
    assert repr(deployment.client).startswith("<RebaserClient of 127.0.0.1:")
    assert repr(values) == f"<ValueSet of 1 value as of commit {values.commit}: net=100>"
    assert values.to_polars()["value"].to_list() == [100]
    assert pa.table(values)["name"].to_pylist() == ["net"]
    with pytest.raises(NoSuchValue, match="no value 'nte' in shop; there is 'net'"):
        await workspace.values("nte")


async def test_content_for_a_computed_value_is_refused_with_the_names_of_its_inputs(
    deployment: Deployment,
) -> None:
    """Also of inputs that the draft does not name; the change set stays as it is."""
    workspace = await new_shop(deployment)
    async with workspace.edit() as g:
        shop(g)
    before = [entry.request for entry in await workspace.log()]

    for more in ("net", "new"):
        draft = Draft()
        draft.source("gross", 3)
        draft.value("due", ADD, "gross", draft.source(more, 1))
        with pytest.raises(
            InvalidDraft, match=r"'gross' is computed; .* instead: net, tax; or let"
        ):
            await workspace.load(draft)
    with pytest.raises(InvalidDraft, match="'gross' is computed"):
        async with workspace.edit(prune=True) as edited:
            edited.source("gross", 3)

    assert [entry.request for entry in await workspace.log()] == before


async def test_a_definition_beyond_a_limit_is_named_before_anything_is_read(
    deployment: Deployment,
) -> None:
    """No Rebaser is asked: none runs, and a comparison would wait for one."""
    small = limits(value_bytes=10, inputs=2, name_depth=2)
    deep, wide, long = Draft(), Draft(), Draft()
    deep.source("a/b/c", 1)
    wide.value("total", ADD, "net/0", "net/1", "net/2")
    long.source("note", "0123456789")

    async with RebaserClient.on(deployment.nc, deployment.js, limits=small) as client:
        workspace = client.workspace("shop")
        for draft, says in (
            (deep, "'a/b/c': a name of 3 parts; at most 2"),
            (wide, "'total': 3 inputs; at most 2"),
            (long, "'note': a value of more than 10 bytes"),
        ):
            with pytest.raises(TooLarge, match=says):
                await workspace.plan(draft)
