"""Credentials, certificates and tokens that are renewed in their files while a Rebaser runs."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nkeys
import pytest
from nats.aio.client import Client

from rebaser_client import RebaserClient
from rebaser_core.jetstream import ConnectOptions, JetStream, NatsUnreachable, connected
from rebaser_core.jetstream.connection import Connection
from rebaser_core.messages import SuccessStatusV3
from rebaser_server.ops.auth import tls_of
from rebaser_server.settings.nats_connection import connect_options
from rebaser_server.settings.settings import Settings
from tests.helpers.batches import new_id, put
from tests.helpers.deployment import SCALED, Daemon, new_change_sets
from tests.helpers.eventually import eventually
from tests.helpers.listener import listening
from tests.helpers.nats_process import NatsServer, running
from tests.security.identities import Certificates, certificates, new_key, operator
from tests.security.test_auth import guarded

HALVES = ["", "-----BEGIN NATS USER JWT-----\n", "-----BEGIN USER NKEY SEED-----\n"]
"""What a file may have while it is written."""

ENOUGH = 20
"""Requests of a phase, at least."""


@asynccontextmanager
async def connection(server: NatsServer, **nats: Any) -> AsyncIterator[Client]:
    """As a daemon with these settings has it."""
    settings = Settings.model_validate({"nats": {"url": server.url, "connect_timeout": 30, **nats}})
    async with connected(connect_options(settings)) as nc:
        yield nc


async def answered(nc: Client) -> bool:
    """Whether the server takes and answers what is sent now."""
    try:
        return await Connection.of(nc).ping(30)
    except NatsUnreachable:
        return False


async def came_back(nc: Client) -> None:
    """Return once the connection was made anew."""
    await eventually(lambda: Connection.of(nc).reconnects > 0 and nc.is_connected)
    assert await answered(nc)


async def test_credentials_that_expired_are_read_anew(tmp_path: Path) -> None:
    issuer, file = operator(), tmp_path / "rebaser.creds"
    with running(NatsServer(tmp_path / "nats", issuer.config)) as server:
        file.write_text(issuer.credentials_of(exp=int(time.time()) + 4))
        async with connection(server, creds=file) as nc:
            file.write_text(issuer.credentials)
            await came_back(nc)


async def test_a_connection_whose_credentials_are_renewed_late_comes_back_by_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is published meanwhile waits, as while a server is away."""
    issuer, file = operator(), tmp_path / "rebaser.creds"
    refused: list[Exception] = []
    with running(NatsServer(tmp_path / "nats", issuer.config)) as server:
        file.write_text(issuer.credentials_of(exp=int(time.time()) + 4))
        options = ConnectOptions(servers=(server.url,), credentials=file)
        async with connected(options, on_error=refused.append) as nc:
            await eventually(lambda: "Authorization" in "".join(map(str, refused)))

            async def says_so() -> bool:
                """Unless the last attempt saw its connection end before the reason came."""
                with pytest.raises(NatsUnreachable) as said:
                    await Connection.of(nc).request("nowhere", timeout=0.1)
                return "Authorization Violation" in str(said.value)

            await eventually(says_so)
            file.write_text(issuer.credentials)
            await came_back(nc)
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    refusal, end = [each for each in said if "login" in each]
    assert "login refused" in refusal
    assert "login accepted again" in end


@pytest.mark.parametrize("half", HALVES)
async def test_a_file_of_credentials_that_is_half_written_ends_nothing(
    tmp_path: Path, half: str
) -> None:
    issuer, file = operator(), tmp_path / "rebaser.creds"
    file.write_text(issuer.credentials)
    refused: list[Exception] = []
    with running(NatsServer(tmp_path / "nats", issuer.config)) as server:
        options = ConnectOptions(servers=(server.url,), credentials=file)
        async with connected(options, on_error=refused.append) as nc:
            file.write_text(half)
            await nc.force_reconnect()
            await eventually(lambda: "rebaser.creds" in "".join(map(str, refused)))
            file.write_text(issuer.credentials)
            await came_back(nc)


async def test_a_key_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    def accepting(pair: nkeys.KeyPair) -> str:
        return f"authorization {{ users: [ {{ nkey: {pair.public_key.decode()} }} ] }}"

    (seed, pair), (later_seed, later) = (new_key(nkeys.PREFIX_BYTE_USER) for _ in range(2))
    file = tmp_path / "seed"
    file.write_text(seed)
    with running(NatsServer(tmp_path / "nats", accepting(pair))) as server:
        async with connection(server, nkey=file) as nc:
            server.reload(accepting(later))
            await eventually(lambda: not nc.is_connected)
            file.write_text(later_seed)
            await came_back(nc)


@pytest.mark.parametrize("mutual", [False, True])
async def test_certificates_that_were_renewed_are_read_anew(
    tmp_path: Path, *, mutual: bool
) -> None:
    """Of another authority even, on both sides."""
    made = certificates(tmp_path / "pem")
    config = made.asks_for_certificates if mutual else made.server_config()
    tls = {"ca": made.ca, **({"certificate": made.client} if mutual else {})}
    with running(NatsServer(tmp_path / "nats", config)) as server:
        async with connection(server, tls=tls) as nc:
            certificates(tmp_path / "pem")
            server.stop()
            server.start()
            await came_back(nc)


async def test_a_certificate_that_cannot_be_read_is_reported_and_tried_again(
    tmp_path: Path,
) -> None:
    made = certificates(tmp_path / "pem")
    sound = made.ca.read_text()
    with running(NatsServer(tmp_path / "nats", made.server_config())) as server:
        async with connection(server, tls={"ca": made.ca}) as nc:
            made.ca.write_text("nothing")
            await nc.force_reconnect()
            await eventually(lambda: "ca.pem" in str(nc.last_error))
            made.ca.write_text(sound)
            await came_back(nc)


async def test_tokens_hold_as_long_as_they_stand_in_their_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("ada operator first")
    async with guarded(tokens_file=str(file)) as (session, url):

        async def status(token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(url + "config", headers=headers) as answer:
                return answer.status

        assert [await status("first"), await status("second")] == [200, 401]
        file.write_text("ada operator second")
        assert [await status("first"), await status("second")] == [401, 200]
        file.write_text("ada second")  # there is no such role
        assert [await status("second"), await status("nobody")] == [200, 401]


async def test_a_visitor_is_shown_the_certificate_that_was_renewed(tmp_path: Path) -> None:
    made = certificates(tmp_path / "pem")
    ops = Settings.model_validate({"ops": {"certificate": made.server}}).ops

    async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        """Say nothing."""

    async with listening(hang_up, ssl=tls_of(ops)) as port:

        async def trusted() -> bool:
            trusting = ssl.create_default_context(cafile=made.ca)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            except ssl.SSLCertVerificationError:
                return False
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            return True

        assert await trusted()
        certificates(tmp_path / "pem")  # of another authority
        assert await trusted()
        made.server.write_text("nothing")
        assert await trusted(), "what cannot be read is passed over"


@pytest.mark.long
async def test_a_rebaser_whose_secrets_are_renewed_under_load_loses_no_request(
    tmp_path: Path,
) -> None:
    """Every certificate is replaced, and then its credentials and the client's expire."""
    issuer, file = operator(), tmp_path / "rebaser.creds"
    made = certificates(tmp_path / "pem")
    file.write_text(issuer.credentials)
    config = f"{issuer.config}\n{made.asks_for_certificates}"
    with running(NatsServer(tmp_path / "nats", config)) as server:
        daemon = Daemon("daemon", tmp_path, SCALED | _variables(server, file, made))
        try:
            await daemon.ready()
            tls = {"ca": made.ca, "certificate": made.client}
            async with (
                connection(server, creds=file, tls=tls) as nc,
                RebaserClient.on(nc, JetStream(nc)) as client,
            ):
                file.write_text(issuer.credentials_of(exp=int(time.time()) + 10))
                certificates(tmp_path / "pem")
                server.stop()
                server.start()
                await _update_until_reconnected(client, nc, times=1)
                file.write_text(issuer.credentials)
                await _update_until_reconnected(client, nc, times=2)
            assert daemon.process.poll() is None
        finally:
            daemon.kill()


def _variables(server: NatsServer, file: Path, made: Certificates) -> dict[str, str]:
    return {
        "NATS__URL": server.url,
        "NATS__CREDS": str(file),
        "NATS__TLS__CA": str(made.ca),
        "NATS__TLS__CERTIFICATE": str(made.client),
        "OPS__ENABLED": "false",
    }


async def _update_until_reconnected(client: RebaserClient, nc: Client, times: int) -> None:
    """Send requests, each after the reply to the one before; each takes effect once, in order."""
    [change_set] = new_change_sets(1)
    value, commits = new_id(), list[int]()
    while Connection.of(nc).reconnects < times or len(commits) < ENOUGH:
        batch = [put(value, len(commits))]
        _, reply = await client.enqueue_updates_with_reply(*change_set, batch)
        async with asyncio.timeout(60):
            status = (await reply).status
        assert isinstance(status, SuccessStatusV3)
        commits.append(status.success.commit)
    assert commits == sorted(set(commits))
    read = await client.change_set(*change_set).values()
    assert read[value].value == len(commits) - 1
