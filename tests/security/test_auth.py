"""Who may look at a daemon's ops endpoint. What it shows is tested in tests/integration."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import make_mocked_request
from pydantic import ValidationError
from yarl import URL

from rebaser_server.ops.auth import Guard, Visitor
from rebaser_server.settings.settings import Role, Settings
from tests.helpers.browser import browsing

RIGHT = {"Authorization": "Bearer höflich"}


@asynccontextmanager
async def guarded(**ops: str) -> AsyncIterator[tuple[ClientSession, str]]:
    async def shown(_: web.Request) -> web.Response:
        return web.Response(text="shown")

    guard = Guard(Settings.model_validate({"ops": ops}).ops, "ada")
    app = web.Application(middlewares=[guard.middleware()])
    app.router.add_get("/{path:.*}", shown)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with ClientSession() as session:
            yield session, f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 401),
        (RIGHT, 200),
        ({"Authorization": "bearer höflich"}, 200),
        ({"Authorization": "Basic höflich"}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": "Bearer hö"}, 401),
        ({"Authorization": b"Bearer \xff\xfe".decode("utf-8", "surrogateescape")}, 401),
    ],
)
async def test_only_who_has_the_token_looks(header: dict[str, str], status: int) -> None:
    async with guarded(token="höflich") as (session, url):
        async with session.get(url + "config", headers=header) as answer:
            assert answer.status == status
        async with session.get(url + "healthz", headers=header) as answer:
            assert answer.status == 200, "probes have no token"


async def test_a_visitor_has_the_name_and_the_role_of_the_token() -> None:
    ops = Settings.model_validate({"ops": {"token": "old", "tokens": "ada operator s3cret"}}).ops
    guard = Guard(ops, "local")

    def visitor(**headers: str) -> Visitor | None:
        return guard.visitor(make_mocked_request("GET", "/", headers=headers))

    assert visitor(Authorization="Bearer old") == Visitor("viewer", Role.VIEWER)
    assert visitor(Authorization="Bearer s3cret") == Visitor("ada", Role.OPERATOR)
    assert visitor(Cookie="rebaser-ops-=s3cret") is None, "a cookie is not the token"
    assert visitor(Authorization="Bearer s3") is None


async def test_a_cookie_holds_for_its_deployment_and_its_token() -> None:
    """Browsers send the cookies of a host to all of its ports."""

    async def cookie_of(guard: Guard, token: str) -> str:
        request = make_mocked_request("GET", f"/?token={token}")
        with pytest.raises(web.HTTPSeeOther) as leading:
            await guard.middleware()(request, None)
        [cookie] = leading.value.cookies.values()
        return f"{cookie.key}={cookie.value}"

    def role(guard: Guard, *cookies: str) -> Role | None:
        request = make_mocked_request("GET", "/", headers={"Cookie": "; ".join(cookies)})
        visitor = guard.visitor(request)
        return visitor and visitor.role

    ops = Settings.model_validate({"ops": {"tokens": "ada operator s3cret, vic viewer v"}}).ops
    one, other = Guard(ops, "local", "one"), Guard(ops, "local", "other")
    cookies = [await cookie_of(one, "s3cret"), await cookie_of(other, "v")]

    assert (role(one, *cookies), role(other, *cookies)) == (Role.OPERATOR, Role.VIEWER)
    assert role(other, cookies[0].replace("one", "other")) is None
    later = Settings.model_validate({"ops": {"tokens": "ada operator new"}}).ops
    assert role(Guard(later, "local", "one"), *cookies) is None


def test_without_a_token_the_role_is_only_for_this_machine() -> None:
    def role(**ops: str) -> Role:
        guard = Guard(Settings.model_validate({"ops": {"local_role": "operator"} | ops}).ops, "me")
        visitor = guard.visitor(make_mocked_request("GET", "/"))
        assert visitor is not None
        return visitor.role

    assert role() is Role.OPERATOR
    assert role(host="0.0.0.0") is Role.VIEWER  # noqa: S104


async def test_a_browser_exchanges_the_token_in_the_address_for_a_cookie() -> None:
    async with guarded(token="hush") as (session, url):
        async with session.get(url, params={"token": "hush"}, allow_redirects=False) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert (answer.status, answer.headers["Location"]) == (303, "/")
        assert "hush" not in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie
        async with session.get(url, headers={"Cookie": cookie.partition(";")[0]}) as answer:
            assert answer.status == 200


async def test_a_link_on_another_site_leads_in_with_a_token_and_after_that_without() -> None:
    """Links stand in chats and tickets, which are other sites."""
    async with guarded(token="hush") as (_, url), browsing() as browser:
        page = await browser.new_page()
        for link in (f"{url}?token=hush", f"{url}change-set"):
            await page.goto(f"data:text/html,<a href='{link}'>look</a>")
            await page.get_by_text("look").click()
            await page.get_by_text("shown").wait_for()


@pytest.mark.parametrize("asked", ["/elsewhere/", "%09/elsewhere/"])
async def test_a_token_in_the_address_keeps_its_visitor_on_this_site(asked: str) -> None:
    """A browser takes what begins with two slashes for an address, and drops tabs."""
    async with guarded(token="hush") as (session, url):
        address = URL(f"{url}{asked}?token=hush", encoded=True)
        async with session.get(address, allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/" + asked.lstrip("/")


@pytest.mark.parametrize("path", ["change-set/values", "services", "dead-letters", "actions/pause"])
async def test_other_machines_see_and_change_no_value_without_a_token(path: str) -> None:
    async with (
        guarded(host="0.0.0.0") as (session, url),  # noqa: S104 - only its settings
        session.get(url + path) as answer,
    ):
        assert answer.status == 403


@pytest.mark.parametrize(
    ("name", "status"),
    [("localhost", 200), ("127.0.0.1:7380", 200), ("[::1]:7380", 200), ("rebound.test", 403)],
)
async def test_without_a_token_a_web_page_cannot_look_by_a_name_that_leads_here(
    name: str, status: int
) -> None:
    async with (
        guarded() as (session, url),
        session.get(url + "config", headers={"Host": name}) as answer,
    ):
        assert answer.status == status


async def test_on_a_network_one_asks_by_whatever_name() -> None:
    async with (
        guarded(host="0.0.0.0") as (session, url),  # noqa: S104 - only its settings
        session.get(url, headers={"Host": "rebaser-0.rebaser"}) as answer,
    ):
        assert answer.status == 200


def test_an_endpoint_on_a_network_without_a_token_is_open() -> None:
    def guard(**ops: str) -> Guard:
        return Guard(Settings.model_validate({"ops": ops}).ops, "ada")

    assert guard(host="0.0.0.0").is_open  # noqa: S104
    assert not guard(host="0.0.0.0", token="hush").is_open  # noqa: S104
    assert not guard(host="::1").is_open


@pytest.mark.parametrize("less", [{"key": __file__}, {"token": ""}, {"certificate": "/none"}])
def test_settings_that_would_protect_less_than_they_seem_to_are_refused(
    less: dict[str, str],
) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"ops": less})
