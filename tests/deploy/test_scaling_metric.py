"""The number by which KEDA scales, as it computes it from a real NATS's monitoring endpoint."""

import asyncio
import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from rebaser_core.jetstream import PullConsumer
from rebaser_core.subjects import TASKS_CONSUMER, Subjects
from rebaser_server.service.composition import prepare
from rebaser_server.settings.settings import Settings
from tests.deploy.manifests import of_kind, rendered
from tests.helpers.deployment import new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.nats_process import NatsServer
from tests.security.roles import ACCOUNTS, connected_as, with_accounts


def keda_lag(endpoint: str, told: dict[str, str]) -> int:
    """What KEDA's nats-jetstream scaler makes of `/jsz` (`getMaxMsgLag`)."""
    query = urllib.parse.urlencode({"acc": told["account"], "consumers": "true", "config": "true"})
    with urllib.request.urlopen(f"{endpoint}/jsz?{query}", timeout=30) as answer:  # noqa: S310
        shown: dict[str, Any] = json.load(answer)
    for account in shown["account_details"]:
        for stream in account["stream_detail"] if account["name"] == told["account"] else ():
            if stream["name"] == told["stream"]:
                for consumer in stream["consumer_detail"]:
                    if consumer["name"] == told["consumer"]:
                        return int(consumer["num_pending"] + consumer["num_ack_pending"])
                return int(stream["state"]["last_seq"])
    raise LookupError(f"no {told['stream']} in {told['account']}: KEDA would not scale")


async def test_scaling_metric_is_the_number_of_change_sets_with_work(tmp_path: Path) -> None:
    """Those that wait for a Rebaser and those in one's hands; not those that are done."""
    [scaled] = of_kind(rendered("keda"), "ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    config = f'http: "127.0.0.1:-1"\n{ACCOUNTS.read_text()}'
    with with_accounts(tmp_path / "nats", config) as server:
        endpoint = monitoring(server)

        async def lag() -> int:
            return await asyncio.to_thread(keda_lag, endpoint, trigger["metadata"])

        async with connected_as(server, "server") as js:
            await prepare(js, Settings())

            async def lag_is(expected: int) -> bool:
                """A consumer learns of a stored message a moment after its receipt."""
                return await lag() == expected

            assert await lag() == 0
            for change_set in new_change_sets(7):
                await js.publish(Subjects().task(change_set))
            await eventually(lambda: lag_is(7))
            async with PullConsumer(js, Subjects().tasks_stream, TASKS_CONSUMER) as tasks:
                held = [await tasks.take(1) for _ in range(3)]
                await eventually(lambda: lag_is(7))
                for task in held[:2]:
                    assert task is not None
                    await task.ack(confirm=True)

                async def is_the_truth() -> bool:
                    stored = await js.stream_info(Subjects().tasks_stream)
                    return await lag() == stored.state.messages == 5

                await eventually(is_the_truth)


def monitoring(server: NatsServer) -> str:
    assert server.process is not None
    return str(server._ports(server.process)["monitoring"][0])
