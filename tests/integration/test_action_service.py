"""Actions over HTTP: each by the role of the token, from the page alone, and in the log."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from aiohttp import ClientSession
from nats.aio.msg import Msg

from rebaser_core.ids import ChangeSet
from rebaser_core.jetstream.connection import subscribed
from rebaser_core.records import PauseScope
from rebaser_server.cluster.pauses import PauseStore
from rebaser_server.ops.actions import ACTIONS
from rebaser_server.ops.answers import cancel_update
from rebaser_server.ops.value_actions import VALUE_ACTIONS
from rebaser_server.processor.dead_letters import DIED_AT, REASON
from tests.helpers.batches import ExampleGraph, new_id
from tests.helpers.deployment import Daemon, Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.integration.test_ops_endpoint import get, started, url_of

TOKENS = "vic viewer v1, eve editor e1, al approver a1, op operator o1"
OPERATOR = "o1"
HEADERS = {"Content-Type": "application/json"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def act(
    daemon: Daemon, action: str, body: Any, token: str = OPERATOR, **headers: str
) -> tuple[int, str]:
    """The status, and the sentence that says what was done or why nothing was."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def post() -> tuple[int, str]:
        request = urllib.request.Request(  # noqa: S310 - loopback
            f"{url_of(daemon)}actions/{action}", data, HEADERS | bearer(token) | headers
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310
                return response.status, json.load(response)["said"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(post)


async def cookie_of(daemon: Daemon, token: str) -> str:
    """Cookie of a browser that was opened with the token."""
    async with ClientSession() as browser:
        url = url_of(daemon)
        async with browser.get(url, params={"token": token}, allow_redirects=False) as answer:
            return answer.headers["Set-Cookie"].partition(";")[0]


def target(change_set: ChangeSet) -> dict[str, str]:
    return {
        "workspace": str(change_set.workspace_id),
        "changeSet": str(change_set.change_set_id),
    }


async def test_each_action_takes_its_role_and_is_in_the_log(deployment: Deployment) -> None:
    [change_set] = new_change_sets(1)
    daemon = await started(deployment, OPS__TOKENS=TOKENS, OPS__TOKEN="old")
    url = url_of(daemon)

    assert json.loads((await get(url + "identity", **bearer("old")))[1]) == {
        "name": "viewer",
        "role": "viewer",
        "may": [],
    }
    assert set(json.loads((await get(url + "identity", **bearer("o1")))[1])["may"]) == {
        *ACTIONS,
        *VALUE_ACTIONS,
    }
    assert (await act(daemon, "pause", {}, "wrong"))[0] == 401
    for token in ("old", "v1", "e1", "a1"):
        code, why = await act(daemon, "pause", target(change_set), token)
        assert (code, "takes the role operator" in why) == (403, True)
    assert await PauseStore(deployment.streams).all() == {}

    reason = {"reason": "a look"}
    assert (await act(daemon, "pause", target(change_set) | reason))[0] == 200
    pauses = await PauseStore(deployment.streams).all()
    record = pauses[PauseScope(*change_set)]
    assert (record.by, record.reason) == ("op", "a look")
    code, said = await act(daemon, "resume", target(change_set))
    assert (code, "is resumed" in said) == (200, True)

    await eventually(lambda: len(daemon.said("action")) == 6)
    assert [(line["author"], line["status"]) for line in daemon.said("action")] == [
        *(("viewer", 403), ("vic", 403), ("eve", 403), ("al", 403)),
        *(("op", 200), ("op", 200)),
    ]
    assert {"old", "v1", "o1"}.isdisjoint(daemon.said_in_all().replace('"', " ").split())


async def test_a_page_of_another_site_can_have_nothing_done(deployment: Deployment) -> None:
    daemon = await started(deployment, OPS__TOKENS=TOKENS)
    cookie = {"Cookie": await cookie_of(daemon, "o1"), "Authorization": ""}

    form = {"Content-Type": "text/plain"}
    assert (await act(daemon, "pause", {}, **cookie, **form))[0] == 403
    assert (await act(daemon, "pause", {}, **cookie, **{"Sec-Fetch-Site": "same-site"}))[0] == 403
    assert (await get(url_of(daemon) + "actions/pause", **bearer("o1")))[0] == 405
    assert (await act(daemon, "pause", b"{"))[0] == 400
    assert (await act(daemon, "pause", {"changeSet": str(new_id())}))[0] == 400
    assert (await act(daemon, "pause", {"everything": True}))[0] == 400
    assert await PauseStore(deployment.streams).all() == {}

    assert (await act(daemon, "pause", {}, **cookie))[0] == 200


async def test_operators_act_as_by_commands(deployment: Deployment) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    daemon = await started(deployment, OPS__LOCAL_ROLE="operator", AUTHOR="ada")
    await deployment.client.change_set(*change_set).enqueue(values.define(), wait="computed")
    dead = {REASON: "why", DIED_AT: "2026-11-22T00:00:00+00:00"}
    await deployment.js.publish(deployment.streams.dead_letters(change_set), b"", headers=dead)

    code, why = await act(daemon, "replay", {"number": 1})
    assert (code, "cannot be decoded" in why) == (409, True)
    code, why = await act(daemon, "replay", {"number": 77})
    assert (code, "no dead letter 77" in why) == (404, True)
    [listed] = json.loads((await get(url_of(daemon) + "dead-letters"))[1])["letters"]
    assert (listed["sequence"], listed["reason"]) == (1, "why")
    shown = json.loads((await get(url_of(daemon) + "dead-letters/1"))[1])
    assert "cannot be decoded" in shown["asked"]

    code, said = await act(daemon, "checkpoint", target(change_set))
    assert (code, "checkpoint of commit" in said) == (200, True)
    assert (await act(daemon, "cancel", target(change_set)))[1][:3] == "no "
    code, why = await act(daemon, "recompute", target(change_set))
    assert (code, "no value failed" in why or "commit" in why) == (200, True)


async def test_a_body_that_is_nested_too_deep_is_refused_by_every_action(
    deployment: Deployment,
) -> None:
    daemon = await started(deployment, OPS__TOKENS=TOKENS)
    deep = [b"[" * depth + b"]" * depth for depth in (500, 100_000)]
    deep += [
        b'{"text":' * 500 + b"1" + b"}" * 500,
        b'{"workspace":' + b"[" * 500 + b"]" * 500 + b"}",
    ]

    for action in (*ACTIONS, *VALUE_ACTIONS):
        for body in deep:
            code, said = await act(daemon, action, body)
            assert code == 400, (action, said)
            assert "nested deeper" in said or "recursion depth" in said

    assert "Traceback" not in daemon.said_in_all()


async def test_what_is_not_there_is_not_found(deployment: Deployment) -> None:
    """No fault of NATS, after which one would ask again."""
    [change_set] = new_change_sets(1)
    daemon = await started(deployment, OPS__TOKENS=TOKENS)
    url, query = url_of(daemon), "workspace={workspace}&changeSet={changeSet}"
    branch = query.format_map(target(change_set))

    letter = await get(f"{url}dead-letters/7", **bearer(OPERATOR))
    effects = await get(f"{url}change-set/effects.csv?{branch}", **bearer(OPERATOR))
    replayed = await act(daemon, "replay", {"number": 7})
    value = {"id": new_id(), "text": "1"}
    edited = await act(daemon, "set-value", target(change_set) | value)

    assert [code for code, _ in (letter, effects, replayed, edited)] == [404] * 4
    assert "there is no dead letter 7" in letter[1]


async def test_an_update_is_cancelled_though_a_former_owner_answers_first(
    deployment: Deployment,
) -> None:
    """One that is fenced off runs no update of the change set."""
    [change_set] = new_change_sets(1)

    async def both(question: Msg) -> None:
        for is_owner in (False, True):
            await question.respond(json.dumps({"cancelled": is_owner}).encode())
            await asyncio.sleep(0.1)

    subject = deployment.streams.cancellations(change_set)
    async with subscribed(deployment.nc, subject, both):
        assert await cancel_update(deployment.streams, change_set)
