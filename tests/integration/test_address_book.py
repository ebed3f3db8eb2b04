"""Change sets by name, by id and by part of an id, on a real registry."""

import re

import pytest

from rebaser_client.client import RebaserClient
from rebaser_client.errors import AmbiguousAddress, NameTaken
from rebaser_core.errors import NoSuchChangeSet
from rebaser_core.ids import ChangeSet, ChangeSetId, RequestId, WorkspaceId
from rebaser_core.records import ApplyAttempt, ChangeSetStatus
from tests.helpers.deployment import Deployment

SHOP = WorkspaceId.from_str("01M7YDMMNP02NAHB7YW46QBSG4")
SHOP_HEAD = ChangeSetId.from_str("01M7YDMMNP02NAHB7YW46QBSG5")
WINTER = ChangeSetId.from_str("01M7ZDR9CS7F5NEP40EWEG5N7X")
SUMMER = ChangeSetId.from_str("01M7ZDR9CS7F5NEP40EWEG5N7Y")
PRICES = WorkspaceId.from_str("01M7Z4XGQB2A0GGHRS5MPF65N6")
PRICES_HEAD = ChangeSetId.from_str("01M7Z4XGQB2A0GGHRS5MPF65N7")


@pytest.fixture
async def client(deployment: Deployment) -> RebaserClient:
    """A client of a registry with two workspaces and two branches."""
    workspaces = deployment.client.workspaces
    await workspaces.create("shop", workspace_id=SHOP, head=SHOP_HEAD)
    await workspaces.create("prices/eu", workspace_id=PRICES, head=PRICES_HEAD)
    await workspaces.fork(SHOP, "winter sale", change_set_id=WINTER)
    await workspaces.fork(SHOP, "summer", change_set_id=SUMMER)
    return deployment.client


async def close(client: RebaserClient, branch: ChangeSetId, commit: int | None = None) -> None:
    """Have the registry say that the branch was applied, or abandoned if without a commit."""
    status = ChangeSetStatus.ABANDONED if commit is None else ChangeSetStatus.APPLIED
    attempt = ApplyAttempt(request=RequestId(), at_head=RequestId(), commit=commit)
    update = {
        "status": status,
        "closed_at": "2026-11-22T10:00:00.000Z",
        "application": None if commit is None else attempt,
    }
    registry = client.workspaces.registry
    await registry.update(ChangeSet(SHOP, branch), lambda record: record.model_copy(update=update))


NAMED = {
    "shop": SHOP_HEAD,
    "shop/head": SHOP_HEAD,
    "shop/winter sale": WINTER,
    "prices/eu": PRICES_HEAD,
    "prices/eu/head": PRICES_HEAD,
    str(SHOP): SHOP_HEAD,
    str(WINTER): WINTER,
    str(WINTER).lower(): WINTER,
    f"{SHOP}/{WINTER}": WINTER,
    f"{SHOP}/summer": SUMMER,
    f"shop/{SUMMER}": SUMMER,
    "01M7YD": SHOP_HEAD,
    "…G5N7X": WINTER,
    "01m7...5n7y": SUMMER,
    "shop/01M7ZDR9…7X": WINTER,
    "01M7YD/summer": SUMMER,
    "…BSG4": SHOP_HEAD,
}

UNKNOWN = {
    "shpo": "there is no workspace 'shpo'; there is 'shop'",
    "shop/wintr": "workspace 'shop' has no change set 'wintr'; there is 'winter sale'",
    "01M": "there is no workspace '01M'",
    "…N7Z9": "there is no workspace '…N7Z9'",
    "": "there is no workspace ''",
    str(RequestId()): "there is no workspace ",
    f"{SHOP}/{PRICES_HEAD}": "workspace 'shop' has no change set ",
}


async def test_an_address_names_one_change_set(client: RebaserClient) -> None:
    """A name, a whole id, and a part of an id that no other one has."""
    found = {address: (await client.change_set(address).ids()).change_set_id for address in NAMED}

    assert found == NAMED


async def test_an_unknown_address_is_an_error_with_similar_names(client: RebaserClient) -> None:
    """The error names what there is instead, if anything is similar."""
    for address, why in UNKNOWN.items():
        with pytest.raises(NoSuchChangeSet, match=re.escape(why)):
            await client.change_set(address).ids()


async def test_a_part_of_several_ids_lists_them(client: RebaserClient) -> None:
    """Each candidate comes with its address and its ids."""
    with pytest.raises(AmbiguousAddress) as several:
        await client.change_set("01M7ZDR9CS7").ids()

    assert f"'shop/winter sale' ({SHOP}/{WINTER})" in str(several.value)
    assert f"'shop/summer' ({SHOP}/{SUMMER})" in str(several.value)


async def test_a_name_that_two_have_lists_both(client: RebaserClient) -> None:
    """Programs may give a name twice; its ids still tell them apart."""
    again, _ = await client.workspaces.create("shop")
    await client.workspaces.fork(SHOP, "summer")

    with pytest.raises(AmbiguousAddress, match=str(again.workspace_id)):
        await client.change_set("shop").ids()
    with pytest.raises(AmbiguousAddress, match=r"'shop/summer' .*'shop/summer'"):
        await client.change_set(f"{SHOP}/summer").ids()
    with pytest.raises(AmbiguousAddress, match=str(again.workspace_id)):
        await client.addresses.workspace("shop")


async def test_a_closed_branch_says_how_it_ended_and_keeps_its_id(client: RebaserClient) -> None:
    """Its name is free again, and then means the open one."""
    await close(client, WINTER, commit=40)
    await close(client, SUMMER)

    with pytest.raises(NoSuchChangeSet, match=r"^'shop/winter sale' was applied as commit 40 of"):
        await client.change_set("shop/winter sale").ids()
    with pytest.raises(NoSuchChangeSet, match=r"^'shop/summer' was abandoned, 2026-11-22T10:00"):
        await client.change_set("shop/summer").ids()
    assert (await client.change_set(str(WINTER)).ids()).change_set_id == WINTER
    reading = await client.addresses.find("shop/summer", closed=True)
    assert reading.change_set == ChangeSet(SHOP, SUMMER)
    new = await client.workspaces.fork(SHOP, "summer")
    assert (await client.change_set("shop/summer").ids()).change_set_id == new.change_set_id
    reading = await client.addresses.find("shop/summer", closed=True)
    assert reading.record.change_set_id == new.change_set_id


async def test_a_name_is_free_unless_an_open_one_has_it(client: RebaserClient) -> None:
    """`head` and `.` mean something else in an address, so that no branch gets these names."""
    addresses = client.addresses
    await close(client, SUMMER)

    for name, workspace in (("shop", None), ("winter sale", SHOP), ("head", SHOP), (".", None)):
        with pytest.raises(NameTaken):
            await addresses.check_free(name, workspace)
    await addresses.check_free("winter sale", PRICES)
    await addresses.check_free("summer", SHOP)
    await addresses.check_free("winter sale")


async def test_ids_become_addresses_again(client: RebaserClient) -> None:
    """An unregistered change set has its ids as address."""
    unknown = ChangeSet(WorkspaceId(), ChangeSetId())

    assert await client.addresses.address_of(ChangeSet(SHOP, SHOP_HEAD)) == "shop"
    assert await client.addresses.address_of(ChangeSet(SHOP, WINTER)) == "shop/winter sale"
    assert await client.addresses.address_of(unknown) == "/".join(map(str, unknown))
    assert await client.addresses.name_of(SHOP) == "shop"
    assert await client.addresses.name_of(unknown.workspace_id) == str(unknown.workspace_id)
    assert sorted(each.address for each in await client.addresses.all()) == [
        *("prices/eu", "shop", "shop/summer", "shop/winter sale"),
    ]
