"""What an operator sees and does from the command line, on a real deployment."""

import asyncio
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from rebaser_core.activities import Activity, ActivityKind, ActivityV1
from rebaser_core.ids import ChangeSet, RequestId
from tests.helpers.batches import ExampleGraph, new_id, set_to
from tests.helpers.command_line import Commands
from tests.helpers.deployment import Deployment, new_change_sets
from tests.helpers.eventually import eventually
from tests.integration.test_command_line import REBASER


@pytest.fixture
def operator(deployment: Deployment) -> Commands:
    return Commands(deployment)


async def test_queues_are_listed_deepest_first(deployment: Deployment, operator: Commands) -> None:
    few, many = new_change_sets(2)
    for change_set, count in ((few, 1), (many, 3)):
        for _ in range(count):
            await deployment.client.enqueue_updates(*change_set, [set_to(new_id(), 1)])

    queue = await operator.read("queue")
    tasks = await operator.read("queue", "--tasks")

    assert [(row["changeSet"], row["requests"]) for row in queue] == [
        (str(many.change_set_id), 3),
        (str(few.change_set_id), 1),
    ]
    assert all(row["oldestSeconds"] >= 0 for row in queue)
    assert {row["changeSet"] for row in tasks} == {str(cs.change_set_id) for cs in (few, many)}
    assert str(many.change_set_id) in await operator.tell("queue")


async def test_a_file_of_updates_is_enqueued_and_seen_through(
    deployment: Deployment, operator: Commands, tmp_path
) -> None:
    await deployment.start()
    [change_set], values = new_change_sets(1), ExampleGraph()
    file = tmp_path / "updates.json"
    file.write_text(json.dumps([*values.define(20, 22), set_to(new_id(), 1)]))

    said = await operator.tell("enqueue", *change_set, file, "--wait", "--unregistered")

    assert "its values are up to date" in said
    assert "update 4: missing-value" in said
    [shown] = await operator.read("values", *change_set, values.gross)
    assert shown["value"] == 42


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON: Expecting"),
        ("", "a batch is a JSON array of updates"),
        ("sku,net\na,1\n", "not JSON: Expecting"),
        ("{}", "not a JSON array"),
        ('[{"setValue": {}}]', "valueId"),
        ('[{"setValue": {"valueId": "abc", "value": 1}}]', "0.valueId: Input should be a ULID"),
    ],
)
async def test_a_file_that_holds_no_updates_is_refused_with_the_reason(
    deployment: Deployment, operator: Commands, tmp_path, content: str, reason: str
) -> None:
    [change_set] = new_change_sets(1)
    (tmp_path / "bad.json").write_text(content)

    said = await operator.tell(
        "enqueue", *change_set, tmp_path / "bad.json", "--unregistered", code=1
    )

    assert reason in said
    assert await operator.read("queue") == []


async def buried(
    deployment: Deployment,
    change_set: ChangeSet,
    batch: list[Any],
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Have a dead letter that asks for `batch`: published under another change set's subject."""
    [other] = new_change_sets(1)
    subject = deployment.streams.requests(other)
    spied: list[Any] = []

    async def see(message: Any) -> None:
        spied.append(message)

    subscription = await deployment.nc.subscribe(deployment.streams.requests(change_set), cb=see)
    await deployment.client.enqueue_updates(*change_set, batch)
    await eventually(lambda: bool(spied))
    await subscription.unsubscribe()
    headers = {k: v for k, v in spied[0].headers.items() if not k.startswith("Nats-")}
    await deployment.js.publish(subject, spied[0].data, headers={**headers, **more})
    await deployment.js.publish(deployment.streams.task(other), b"")


async def test_a_dead_letter_is_listed_shown_replayed_once_and_gone(
    deployment: Deployment, operator: Commands
) -> None:
    [change_set], values = new_change_sets(1), ExampleGraph()
    await buried(deployment, change_set, values.define(1, 2))
    await deployment.start()
    await deployment.at_rest()

    [letter] = await operator.read("dead-letters")
    shown = json.loads(await operator.tell("dead-letters", "show", letter["sequence"]))
    said = await operator.tell("dead-letters", "replay", letter["sequence"])

    assert "published for" in letter["reason"]
    assert shown["asked"]["changeSetId"] == str(change_set.change_set_id)
    assert "enqueued again as request" in said
    await deployment.at_rest()
    assert await operator.read("dead-letters") == []
    [total] = await operator.read("values", *change_set, values.gross)
    assert total["value"] == 3
    assert "no dead letter" in await operator.tell(
        "dead-letters", "replay", letter["sequence"], code=1
    )


async def test_letters_that_were_replayed_are_named_if_a_later_one_is_not(
    deployment: Deployment, operator: Commands
) -> None:
    """A program that reads JSON would otherwise not know which requests are new."""
    [change_set] = new_change_sets(1)
    await buried(deployment, change_set, ExampleGraph().define(1, 2))
    await deployment.start()
    await deployment.at_rest()
    [letter] = await operator.read("dead-letters")

    done = await operator.give("dead-letters", "replay", letter["sequence"], 77, "--json")

    assert (done.code, "no dead letter 77" in done.err) == (1, True)
    assert [each["sequence"] for each in json.loads(done.out)] == [letter["sequence"]]


async def test_a_letter_with_a_part_in_the_store_needs_no_setting_that_says_where_that_is(
    deployment: Deployment, operator: Commands
) -> None:
    """A Rebaser says it; without one, the error names the setting, and calls nothing lost."""
    [change_set] = new_change_sets(1)
    whole = deployment.nc.max_payload - 100  # the reason for its death has no room beside it
    await deployment.js.publish(deployment.streams.requests(change_set), b"\xff" * whole)
    await deployment.js.publish(deployment.streams.task(change_set), b"")
    daemon = await deployment.start()
    await deployment.at_rest()
    elsewhere = Commands(deployment)
    del elsewhere._variables["REBASER_STORE__ROOT"]

    shown = json.loads(await elsewhere.tell("dead-letters", "show", 1))
    daemon.kill()
    unknown = await elsewhere.tell("dead-letters", "show", 1, code=1)

    assert "cannot be decoded" in shown["asked"]
    assert "REBASER_STORE__ROOT is not set" in unknown


async def test_letters_that_come_meanwhile_are_not_counted_as_purged(
    deployment: Deployment, operator: Commands
) -> None:
    """They come while others are purged wherever there is trouble."""
    streams = deployment.streams
    subject = streams.dead_letters(new_change_sets(1)[0])
    for _ in range(2):
        await deployment.js.publish(subject, b"a letter")

    async def send_more(_: Any) -> None:
        for _ in range(3):
            await deployment.nc.publish(subject, b"a letter")

    for asked in ("INFO", "PURGE", "MSG.DELETE"):
        api = f"$JS.API.STREAM.{asked}.{streams.dead_letters_stream}"
        await deployment.nc.subscribe(api, cb=send_more)
    one = await operator.read("dead-letters", "purge", 1)
    every = await operator.read("dead-letters", "purge", "--all")

    assert (one["purged"], every["purged"] > 0) == (1, True)


async def test_a_letter_that_cannot_be_read_is_kept_and_can_be_purged(
    deployment: Deployment, operator: Commands
) -> None:
    [change_set] = new_change_sets(1)
    await deployment.js.publish(deployment.streams.requests(change_set), b"\xff")
    await deployment.js.publish(deployment.streams.task(change_set), b"")
    await deployment.start()
    await deployment.at_rest()
    [letter] = await operator.read("dead-letters")

    said = await operator.tell("dead-letters", "replay", letter["sequence"], code=1)

    assert "enqueue a corrected request" in said
    assert len(await operator.read("dead-letters")) == 1
    await operator.tell("dead-letters", "purge", letter["sequence"])
    again = await operator.tell("dead-letters", "purge", letter["sequence"], code=1)
    assert f"there is no dead letter {letter['sequence']}" in again
    assert await operator.read("dead-letters") == []


async def test_watch_prints_activities_until_it_is_ended(
    deployment: Deployment,
) -> None:
    [change_set] = new_change_sets(1)
    process = await following(deployment, change_set, "--json")
    await deployment.start()
    await deployment.client.enqueue_updates(*change_set, ExampleGraph().define())

    told: list[str] = []
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while "quiet" not in told:
            told.append(json.loads(await process.stdout.readline())["kind"])
    process.send_signal(signal.SIGINT)

    assert await process.wait() == 130
    wanted = ["taken", "requestApplied", "dvuStarted", "dvuFinished", "quiet"]
    assert [kind for kind in dict.fromkeys(told) if kind in wanted] == wanted


async def test_watch_goes_on_after_an_activity_whose_id_is_of_a_time_that_no_calendar_has(
    deployment: Deployment,
) -> None:
    """An id goes on to the year 10889, and who may publish an activity chooses it."""
    [change_set] = new_change_sets(1)
    process = await following(deployment, change_set)
    latest = ActivityV1(
        id=RequestId.from_str("7" + 25 * "Z"),
        workspace_id=change_set.workspace_id,
        change_set_id=change_set.change_set_id,
        kind=ActivityKind.QUIET,
    )
    headers, payload = Activity.encode(latest)

    for _ in range(2):
        await deployment.nc.publish(
            deployment.streams.activities(change_set), payload, headers=headers
        )

    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = [await process.stdout.readline() for _ in range(2)]
    process.kill()
    await process.wait()
    assert [line.split() for line in lines] == 2 * [[str(latest.id).encode(), b"quiet"]]


async def following(deployment: Deployment, change_set: ChangeSet, *options: str) -> Process:
    """Return `rebaser log --follow` once it hears activities."""
    process = await asyncio.create_subprocess_exec(
        *(REBASER, "log", "--follow", *map(str, change_set), *options),
        env=os.environ | {"REBASER_NATS__URL": deployment.nats.url},
        stdout=asyncio.subprocess.PIPE,
    )
    subject = deployment.streams.activities(change_set)
    await eventually(lambda: heard_by_anyone(deployment, subject), within=60)
    return process


async def heard_by_anyone(deployment: Deployment, subject: str) -> bool:
    """Whether the subject has a subscriber.

    NATS answers a request to a subject without subscribers at once, and handles a connection's
    messages in order. Of two requests, the second one's subject has no subscriber: if NATS answers
    that one first, the first one's subject has a subscriber.
    """
    inbox = deployment.nc.new_inbox()
    answers = await deployment.nc.subscribe(f"{inbox}.*")
    await deployment.nc.publish(subject, reply=f"{inbox}.unheard")
    await deployment.nc.publish(deployment.nc.new_inbox(), reply=f"{inbox}.heard")
    first = await answers.next_msg(timeout=60)
    await answers.unsubscribe()
    return first.subject == f"{inbox}.heard"


@pytest.mark.long
async def test_a_request_with_many_headers_is_replayed_with_all_of_them(
    deployment: Deployment, operator: Commands
) -> None:
    """A letter has no room for more than 32 KiB of them: the request is kept beside it."""
    [change_set], values = new_change_sets(1), ExampleGraph()
    many = {f"X-Any-{number}": "a" * 900 for number in range(45)}
    await buried(deployment, change_set, values.define(1, 2), many)
    await deployment.start()
    await deployment.at_rest()

    [letter] = await operator.read("dead-letters")
    shown = json.loads(await operator.tell("dead-letters", "show", letter["sequence"]))
    said = await operator.tell("dead-letters", "replay", letter["sequence"])

    assert shown["asked"]["changeSetId"] == str(change_set.change_set_id)
    assert many.items() <= shown["headers"].items()
    assert "enqueued again as request" in said
    await deployment.at_rest()
    [total] = await operator.read("values", *change_set, values.gross)
    assert total["value"] == 3
