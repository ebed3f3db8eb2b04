"""The pages of services and keys, as a worker serves them, in a real browser."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from playwright.async_api import Browser, Page, expect
from pydantic import SecretStr

from rebaser_client.errors import RequestDead
from rebaser_server.handlers import Context, Reject, Service
from rebaser_server.settings.settings import OpsSettings, Role
from tests.docs.pictures import shown as looking
from tests.helpers.browser import Watched
from tests.helpers.deployment import Deployment
from tests.helpers.workers import Working
from tests.integration.test_accessible_pages import LOOKS, serious
from tests.integration.test_change_set_page import require_readable
from tests.integration.test_operator_page import TOKENS, agree, said
from tests.integration.test_ops_endpoint import get
from tests.integration.test_status_page import PATIENCE, rows, shown

expect.set_options(timeout=PATIENCE)
HOSTILE: Final = (
    *("<img src=x onerror=alert(1)>\u202e", "a/b", "..", ".", "ключ 🔑", "c%2Fd", "x?y=1&z#w"),
    *("'\"`", "rebaser:%", "__proto__"),
)
"""Names that paths, queries and markup take for something else."""


@dataclass
class Order:
    items: list[str] = field(default_factory=list)


class Carrier:
    """A carrier on which a handler relies, and the service of that handler."""

    def __init__(self, name: str = "orders") -> None:
        self.answers = False
        self.service = service = Service(name, version=3)
        service.state(Order)

        @service.handler
        async def add(ctx: Context[Order], item: str, count: int = 1) -> int:
            """Put an item into the order.

            As often as is said.
            """
            if not item:
                raise Reject("an item has a name")
            ctx.state.items += [item] * count
            return len(ctx.state.items)

        @service.handler
        def ship(ctx: Context[Order], street: str) -> str:
            if not self.answers:
                raise ConnectionError("the carrier is away")
            ctx.state.items.clear()
            return f"to {street}"


@asynccontextmanager
async def opened(
    deployment: Deployment, browser: Browser, *services: Service, attempts: int = 2, **ops: Any
) -> AsyncIterator[tuple[Page, str]]:
    """A worker, and a browser with a page, which has not complained in the end."""
    settings = OpsSettings(port=0, **{"local_role": Role.OPERATOR} | ops)
    working = Working(deployment).worker(*services, ops=settings, max_attempts=attempts)
    async with working as url:
        assert url is not None
        page = await browser.new_page()
        watched = Watched(page)
        yield page, url
        await page.close()
        assert all(each.startswith(url) for each in watched.asked), "nothing from elsewhere"
        assert not watched.complaints


async def test_the_front_page_of_a_worker_shows_services_and_keys_the_failing_ones_first(
    deployment: Deployment, browser: Browser
) -> None:
    """Nothing is said of values; names lead to the pages of a service and of a key."""
    orders, payments, key = Carrier(), Carrier("a bank"), Working(deployment).key
    async with opened(deployment, browser, orders.service, payments.service) as (page, url):
        with pytest.raises(RequestDead):
            await key("orders", "o-17").call("ship", "here")
        for name in ("o-1", "o-2"):
            await key("orders", name).call("add", "cup")
        await key("a bank", "p-1").call("add", "coin")

        await page.goto(url)

        await expect(rows(page, "Services")).to_have_count(2)
        first = re.compile(r"orders.*add, ship.*1 dead letter.*3")
        await expect(rows(page, "Services").first).to_have_text(first)
        await expect(rows(page, "Keys")).to_have_count(4)
        await expect(rows(page, "Keys").first).to_have_text(
            re.compile("orders / o-17.*1 dead letter")
        )
        attention = page.get_by_role("region", name="Needs attention")
        await expect(attention).to_contain_text("the carrier is away")
        for path in ("", "letters", "operator", "deployment"):
            await page.goto(url + path)
            await expect(page.get_by_role("link", name="Services")).to_be_visible()
            for word in ("Workspace", "Updates", "Running updates", "Change set", "Spark"):
                await expect(page.get_by_text(word).locator("visible=true")).to_have_count(0)
        await page.goto(url)
        await page.get_by_role("searchbox", name="Search").fill("O-2")
        await expect(rows(page, "Keys")).to_have_count(1)
        await page.get_by_role("link", name="orders / o-2").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("orders / o-2")
        assert page.url == f"{url}key?service=orders&key=o-2"
        await page.get_by_role("link", name="orders", exact=True).press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("orders")
        assert page.url == f"{url}service?name=orders"
        await page.go_back()
        await expect(page.get_by_role("heading", level=1)).to_have_text("orders / o-2")
        await page.go_forward()
        await expect(page.get_by_role("heading", level=1)).to_have_text("orders")


async def test_the_page_of_a_service_shows_its_handlers_and_finds_its_keys(
    deployment: Deployment, browser: Browser
) -> None:
    orders, other, key = Carrier(), Carrier("other"), Working(deployment).key
    async with opened(deployment, browser, orders.service, other.service) as (page, url):
        with pytest.raises(RequestDead):
            await key("orders", "o-2").call("ship", "here")
        for number in range(4):
            await key("orders", f"o-{number}").call("add", "cup")
        await key("other", "o-9").call("add", "cup")

        await page.goto(f"{url}service?name=orders")

        await expect(rows(page, "Keys")).to_have_count(4)
        await expect(rows(page, "Keys").first).to_have_text(re.compile("^o-21 dead letter"))
        handlers = rows(page, "Handlers")
        await expect(handlers.first).to_have_text(
            "add(item: string, count?: integer)integerPut an item into the order."
        )
        await expect(shown(page, "Keys")).to_have_text("4")
        await expect(shown(page, "Dead letters")).to_have_text("1")
        await page.get_by_role("searchbox", name="Search keys").fill("orders")
        await expect(rows(page, "Keys")).to_have_count(1)
        await expect(rows(page, "Keys")).to_contain_text("None that is open has that name.")
        await page.get_by_role("searchbox", name="Search keys").fill("O-3")
        await expect(rows(page, "Keys")).to_have_count(1)
        await page.get_by_role("button", name="Pause orders").press("Enter")
        await agree(page, "stocktaking")
        await expect(page.locator("#kinds")).to_have_text("version 3paused")
        await key("orders", "o-3").send("add", "waits")
        await expect(rows(page, "Keys")).to_have_text(re.compile("^o-3pausedwaiting1"))
        await rows(page, "Keys").get_by_role("link").press("Enter")
        await expect(page.locator("#about")).to_contain_text("Its service is paused since")
        await expect(page.locator("#about")).to_contain_text("stocktaking")
        await expect(rows(page, "Calls waiting")).to_contain_text('add("waits")')
        await page.go_back()
        await page.get_by_role("button", name="Resume orders").press("Enter")
        await expect(page.locator("#kinds")).to_have_text("version 3")


async def test_a_key_is_looked_at_paused_resumed_and_its_dead_letter_replayed(
    deployment: Deployment, browser: Browser
) -> None:
    """A failed call stands there with its traceback; what changes is shown without a reload."""
    orders, order = Carrier(), Working(deployment).key("orders", "o-17")
    async with opened(deployment, browser, orders.service) as (page, url):
        await order.call("add", "<b>cup</b>")
        with pytest.raises(RequestDead):
            await order.call("ship", street="here")
        await order.send("add", "later", every="0 7 * * *", zone="Europe/Berlin", timer="daily")

        await page.goto(f"{url}key?service=orders&key=o-17")

        state = page.get_by_role("group", name="The state as JSON")
        await expect(state).to_have_text('{\n  "items": [\n    "<b>cup</b>"\n  ]\n}')
        letters, calls = rows(page, "Dead letters"), rows(page, "Last calls")
        failed = re.compile(
            r'ship\(street="here"\).*ConnectionError: the carrier is away \(at .*\.py:\d+ in ship\)'
        )
        await expect(letters).to_have_text(failed)
        await expect(rows(page, "Timers")).to_have_text(
            re.compile(r"daily → add.* then 0 7 \* \* \* Europe/Berlin")
        )
        await expect(calls).to_have_count(3)
        await expect(calls.nth(1)).to_have_text(
            re.compile("^shipdead.*carrier is away.*[0-9] ?m?s")
        )
        await expect(calls.nth(2)).to_have_text(re.compile("^add→ 1"))
        await require_readable(page)

        await page.get_by_role("button", name="Pause o-17").press("Enter")
        await agree(page, "a look")
        await expect(page.locator("#about")).to_have_text(re.compile("^Paused since .*: a look"))
        await order.send("add", "saucer")
        await expect(shown(page, "Calls waiting")).to_have_text("1")
        await page.get_by_role("button", name="Resume o-17").press("Enter")
        await expect(state).to_contain_text("saucer")
        await expect(shown(page, "Calls waiting")).to_have_text("0")
        await expect(page.locator("#about")).to_be_hidden()

        orders.answers = True
        await page.get_by_role("button", name="Replay dead letter 1").press("Enter")
        await agree(page)
        await expect(said(page)).to_contain_text("dead letter 1 is enqueued again")
        await expect(page.get_by_role("region", name="Dead letters")).to_be_hidden()
        await expect(calls.first).to_have_text(re.compile('^ship→ "to here"'))
        await expect(state).to_have_text('{\n  "items": []\n}')


async def test_a_call_that_is_tried_again_says_why(
    deployment: Deployment, browser: Browser
) -> None:
    """For as long as it is tried; then its result is there."""
    orders, order = Carrier(), Working(deployment).key("orders", "o-17")
    async with opened(deployment, browser, orders.service, attempts=100) as (page, url):
        await order.call("add", "cup")
        await page.goto(f"{url}key?service=orders&key=o-17")
        await expect(page.get_by_role("status")).to_contain_text("NATS answers")

        await order.send("ship", "here")

        await expect(page.locator("#message")).to_contain_text("the carrier is away")
        orders.answers = True
        await expect(rows(page, "Last calls").first).to_contain_text("to here")
        await expect(page.locator("#message")).to_be_empty()


async def test_large_states_and_results_are_cut(deployment: Deployment, browser: Browser) -> None:
    orders, order = Carrier(), Working(deployment).key("orders", "o-17")
    async with opened(deployment, browser, orders.service) as (page, url):
        for _ in range(25):
            await order.call("add", item="x" * 80, count=100)

        _, body = await get(f"{url}services/key?service=orders&key=o-17&rows=20")
        await page.goto(f"{url}key?service=orders&key=o-17")

        assert len(body) < 40_000
        assert json.loads(body)["stateSize"] > 200_000
        await expect(page.locator("#statenote")).to_contain_text("rebaser values shows all")
        await expect(rows(page, "Last calls")).to_have_count(20)
        await page.get_by_role("button", name="Show more").press("Enter")
        await expect(rows(page, "Last calls")).to_have_count(25)
        await expect(page.get_by_role("button", name="Show more")).to_be_hidden()


async def test_names_of_any_text_have_pages(deployment: Deployment, browser: Browser) -> None:
    """Addresses say them; links lead there, a reload stays, and back leads back."""
    hostile = [Carrier(name) for name in HOSTILE]
    async with opened(deployment, browser, *(each.service for each in hostile)) as (page, url):
        key = Working(deployment).key
        await asyncio.gather(*(key(name, name).call("add", name) for name in HOSTILE))
        await key(HOSTILE[0], " ").call("add", "a space")
        await page.goto(url)
        await expect(rows(page, "Keys")).to_have_count(len(HOSTILE) + 1)

        for name in HOSTILE:
            seen = name.replace("\u202e", r"\u202e")
            title = page.get_by_role("heading", level=1)
            await rows(page, "Services").get_by_role("link", name=seen, exact=True).click()
            await expect(title).to_have_text(seen)
            await rows(page, "Keys").get_by_role("link", name=seen, exact=True).click()
            await expect(title).to_have_text(f"{seen} / {seen}")
            await page.reload()
            await expect(title).to_have_text(f"{seen} / {seen}")
            state = json.dumps({"items": [name]}, indent=2, ensure_ascii=False)
            await expect(page.locator("#keystate")).to_have_text(state.replace(name, seen))
            await page.go_back()
            await expect(title).to_have_text(seen)
            await page.go_back()
            await expect(rows(page, "Keys")).to_have_count(len(HOSTILE) + 1)

        await page.get_by_role("link", name='/ " "').click()
        await expect(page.locator("#keystate")).to_contain_text("a space")
        assert await page.locator("main img").count() == 0
        await require_readable(page)


async def test_a_key_is_found_at_the_address_that_commands_take_too(
    deployment: Deployment, browser: Browser
) -> None:
    orders = Carrier()
    async with opened(deployment, browser, orders.service) as (page, url):
        await Working(deployment).key("orders", "o/17").call("add", "cup")

        await page.goto(f"{url}orders/o%2F17")

        await expect(page.get_by_role("heading", level=1)).to_have_text("orders / o/17")
        await expect(page.locator("#keystate")).to_contain_text("cup")
        unknown = await get(f"{url}services/key?service=orders&key=o-18")
        assert unknown == (404, "key 'o-18' of service 'orders' was never called\n")
        assert (await get(f"{url}services/key?service=%ED%A0%80&key=%FF"))[0] == 404
        unknown = await get(f"{url}services?name=order")
        assert unknown == (404, "no worker ever served a service 'order'\n")


async def test_viewers_of_keys_look_on(deployment: Deployment, browser: Browser) -> None:
    orders = Carrier()
    tokens = {"tokens": SecretStr(TOKENS)}
    async with opened(deployment, browser, orders.service, **tokens) as (page, url):
        with pytest.raises(RequestDead):
            await Working(deployment).key("orders", "o-17").call("ship", "here")

        await page.goto(f"{url}key?service=orders&key=o-17&token=v1")

        assert page.url == f"{url}key?service=orders&key=o-17"
        await expect(page.locator("#visitor")).to_have_text("vic: viewer")
        await expect(rows(page, "Dead letters")).to_contain_text("the carrier is away")
        for name in ("Replay", "Pause"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)
        assert (await get(f"{url}services/key?service=orders&key=o-17"))[0] == 401


async def test_keys_are_shown_to_other_machines_only_with_a_token(deployment: Deployment) -> None:
    ops = OpsSettings(port=0, host="0.0.0.0")  # noqa: S104
    async with Working(deployment).worker(Carrier().service, ops=ops) as url:
        await Working(deployment).key("orders", "o-17").call("add", "cup")

        for path in ("services", "services/key?service=orders&key=o-17", "change-sets"):
            assert (await get(f"{url}{path}"))[0] == 403


async def test_axe_finds_nothing_serious_on_pages_of_services(
    deployment: Deployment, browser: Browser
) -> None:
    orders, order = Carrier(), Working(deployment).key("orders", "o-17")
    async with opened(deployment, browser, orders.service) as (page, url):
        await order.call("add", "cup")
        with pytest.raises(RequestDead):
            await order.call("ship", "here")
        await order.send("add", "later", after=1_000)
        await order.send("add", "")

        found = list[str]()
        for path in ("", "service?name=orders", "key?service=orders&key=o-17"):
            await page.goto(url + path)
            await expect(page.get_by_text("dead letter").first).to_be_attached()
            await expect(page.locator("tbody tr").first).to_be_visible()
            for look, options in LOOKS:
                await looking(page, look)
                found += [f"{path}, {look}: {each}" for each in await serious(page, options)]

        assert not found, "\n".join(found)
