"""A NATS account with limits, as managed ones have: one that is too small is named."""

from pathlib import Path

import pytest

from rebaser_core.jetstream import JetStream, connected
from rebaser_core.streams import Streams
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.handlers.sending import Alarms
from rebaser_server.service.composition import prepare
from rebaser_server.settings.nats_connection import connect_options
from rebaser_server.settings.settings import Settings
from tests.helpers.command_line import run_command
from tests.helpers.nats_process import NatsServer, running
from tests.security.identities import operator

LIMITS: dict[str, dict[str, int | bool]] = {
    "allows no stream without a limit of its bytes": {"max_bytes_required": True},
    "allows no more streams": {"streams": 6},
    "allows no more consumers": {"consumer": 3},
}
NEEDED = "Rebaser needs 7 streams, one lasting consumer"


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_that_is_too_small_ends_a_start_with_its_name_and_what_is_needed(
    tmp_path: Path, limit: str
) -> None:
    issuer, file = operator(**LIMITS[limit]), tmp_path / "rebaser.creds"
    file.write_text(issuer.credentials)
    with running(NatsServer(tmp_path / "nats", issuer.config)) as server:
        variables = {
            "REBASER_NATS__URL": server.url,
            "REBASER_NATS__CREDS": str(file),
            "REBASER_STORE__ROOT": str(tmp_path / "store"),
            "REBASER_OPS__ENABLED": "false",
        }
        done = run_command(["serve"], variables)

    first, hint = done.err.splitlines()[-2:]
    assert done.code == Exit.FAILED
    assert limit in first
    assert NEEDED in hint
    assert "REBASER_NATS__STREAM_BYTES" in hint


@pytest.mark.parametrize("limit", [{}, {"disk_max_stream_bytes": 2_000_000}])
async def test_an_account_that_asks_for_a_limit_of_bytes_gets_one_by_a_setting(
    tmp_path: Path, limit: dict[str, int | bool]
) -> None:
    issuer, file = (
        operator(max_bytes_required=True, disk_storage=20_000_000, **limit),
        tmp_path / "c",
    )
    file.write_text(issuer.credentials)
    with running(NatsServer(tmp_path / "nats", issuer.config)) as server:
        given = {"url": server.url, "creds": file, "stream_bytes": 2_000_000}
        settings = Settings.model_validate({"nats": given})
        async with connected(connect_options(settings)) as nc:
            js = JetStream(nc)
            assert await prepare(js, settings) == []
            await Alarms(Streams(js=js))._ensure()  # as a worker of services does
            made = [await js.stream_config(name) for name in await js.stream_names()]
            lesser = settings.model_copy(
                update={"nats": settings.nats.model_copy(update={"stream_bytes": 1_000_000})}
            )
            drifts = await prepare(js, lesser)

    assert [config.max_bytes for config in made] == [2_000_000] * 8
    assert [drift.name for drift in drifts] == ["stream REBASER_REQUESTS"]
