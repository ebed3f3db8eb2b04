"""As whom one connects to NATS, and that secrets go to nobody else."""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nkeys
import pytest
from pydantic import ValidationError

from rebaser_client.client import connect
from rebaser_core.errors import Unreachable as ClientUnreachable
from rebaser_core.jetstream import (
    ConnectOptions,
    JetStream,
    NatsUnreachable,
    connected,
)
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.errors import BadServerUrl
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.settings.nats_connection import connect_options
from rebaser_server.settings.settings import Settings, servers_of
from tests.helpers.command_line import run_command
from tests.helpers.deployment import SCALED, Daemon
from tests.helpers.eventually import eventually
from tests.helpers.listener import listening
from tests.helpers.nats_process import NatsServer, running
from tests.security.identities import Certificates, certificates, new_key, operator


@dataclass
class Way:
    """A server's configuration, and how each of ours is told to satisfy it."""

    config: str
    settings: dict[str, Any]
    options: dict[str, Any]
    wrong: dict[str, Any] = field(default_factory=dict)
    """Settings that must not do."""


def _tls(directory: Path) -> Way:
    made = certificates(directory)
    trusting = ssl.create_default_context(cafile=made.ca)
    return Way(made.server_config(), {"tls": {"ca": made.ca}}, {"tls": trusting})


def _tls_first(directory: Path) -> Way:
    made = certificates(directory)
    trusting = ssl.create_default_context(cafile=made.ca)
    return Way(
        made.server_config("handshake_first: true"),
        {"tls": {"ca": made.ca, "handshake_first": True}},
        {"tls": trusting, "tls_handshake_first": True},
    )


def _mutual(directory: Path) -> Way:
    made = certificates(directory)
    known = ssl.create_default_context(cafile=made.ca)
    known.load_cert_chain(made.client)
    return Way(
        made.asks_for_certificates,
        {"tls": {"ca": made.ca, "certificate": made.client, "hostname": "nats.internal"}},
        {"tls": known, "tls_hostname": "nats.internal"},
        {"tls": {"ca": made.ca, "certificate": made.stranger}},
    )


def _password(_: Path) -> Way:
    return Way(
        "authorization { user: rebaser, password: right }",
        {"user": "rebaser", "password": "right"},
        {"user": "rebaser", "password": "right"},
        {"user": "rebaser", "password": "wrong"},
    )


def _token(_: Path) -> Way:
    return Way(
        "authorization { token: right }", {"token": "right"}, {"token": "right"}, {"token": "wrong"}
    )


def _nkey(directory: Path) -> Way:
    seed, pair = new_key(nkeys.PREFIX_BYTE_USER)
    other, _ = new_key(nkeys.PREFIX_BYTE_USER)
    (directory / "seed").write_text(seed + "\n")
    (directory / "other").write_text(other)
    return Way(
        f"authorization {{ users: [ {{ nkey: {pair.public_key.decode()} }} ] }}",
        {"nkey": directory / "seed"},
        {"nkeys_seed": seed},
        {"nkey": directory / "other"},
    )


def _credentials(directory: Path) -> Way:
    right, other = operator(), operator()
    (directory / "right.creds").write_text(right.credentials)
    (directory / "other.creds").write_text(other.credentials)
    return Way(
        right.config,
        {"creds": directory / "right.creds"},
        {"credentials": directory / "right.creds"},
        {"creds": directory / "other.creds"},
    )


WAYS = {
    "tls": _tls, "tls-first": _tls_first, "mutual-tls": _mutual, "password": _password,
    "token": _token, "nkey": _nkey, "credentials": _credentials,
}  # fmt: skip


def settings(server: NatsServer, **nats: Any) -> Settings:
    told = {"url": server.url, "connect_timeout": 30, **nats}
    return Settings.model_validate({"nats": told})


@pytest.mark.parametrize("how", WAYS)
async def test_each_nats_login_method_connects(tmp_path: Path, how: str) -> None:
    way = WAYS[how](tmp_path)
    with running(NatsServer(tmp_path / "nats", way.config)) as server:
        async with connected(connect_options(settings(server, **way.settings))) as nc:
            assert await JetStream(nc).stream_names() == []
        async with connect(server.url, **way.options) as client:
            assert await client._streams.js.stream_names() == []
        with pytest.raises(NatsUnreachable):
            async with connected(
                connect_options(settings(server, connect_timeout=1.5, **way.wrong))
            ):
                pass


async def test_a_daemon_and_the_commands_take_the_same_variables(tmp_path: Path) -> None:
    made = certificates(tmp_path / "pem")
    config = made.asks_for_certificates + "\nauthorization { user: rebaser, password: hush }"
    with running(NatsServer(tmp_path / "nats", config)) as server:
        variables = SCALED | {
            "NATS__URL": server.url.replace("nats://", "tls://rebaser:hush@"),
            "NATS__TLS__CA": str(made.ca),
            "NATS__TLS__CERTIFICATE": str(made.client),
            "OPS__ENABLED": "false",
        }
        daemon = Daemon("daemon", tmp_path, variables)
        try:
            await daemon.ready()
            asked = await asyncio.to_thread(
                subprocess.run,
                [Path(sys.executable).parent / "rebaser", "queue", "--json"],
                env=os.environ | {f"REBASER_{k}": v for k, v in variables.items()},
                capture_output=True,
                check=True,
            )
        finally:
            daemon.kill()

    assert isinstance(json.loads(asked.stdout), (list, dict))
    assert "hush" not in daemon.said_in_all()


class Eavesdropper:
    """Greets as a server without TLS does, and keeps what it is told."""

    def __init__(self) -> None:
        self.heard = b""

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "auth_required": true, "tls_available": true}\r\n')
        self.heard += await reader.read(1000)


@pytest.mark.parametrize("scheme", ["tls", "nats"], ids=["by-the-url", "by-the-context"])
async def test_where_tls_is_wanted_no_secret_goes_out_without_it(scheme: str) -> None:
    """Whoever sits in between can take the server's wish for TLS out of its greeting."""
    ear = Eavesdropper()
    async with listening(ear.meet) as port:
        options = ConnectOptions(
            servers=(f"{scheme}://127.0.0.1:{port}",),
            token="hush",
            tls=ssl.create_default_context() if scheme == "nats" else None,
            connect_timeout=1.5,
        )
        with pytest.raises(NatsUnreachable, match="TLS is configured"):
            async with connected(options):
                pass

    assert ear.heard == b""


async def test_a_server_with_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    made = certificates(tmp_path)
    with (
        running(NatsServer(tmp_path / "nats", made.server_config())) as server,
        pytest.raises(ClientUnreachable, match="certificate"),
    ):
        async with connect(server.url.replace("nats:", "tls:"), connect_timeout=3):
            pass


def _unknown(made: Certificates) -> tuple[str, dict[str, Path]]:
    return made.server_config(), {}


def _expired(made: Certificates) -> tuple[str, dict[str, Path]]:
    return replace(made, server=made.expired).server_config(), {"CA": made.ca}


def _misnamed(made: Certificates) -> tuple[str, dict[str, Path]]:
    return replace(made, server=made.elsewhere).server_config(), {"CA": made.ca}


def _anonymous(made: Certificates) -> tuple[str, dict[str, Path]]:
    return made.asks_for_certificates, {"CA": made.ca}


def _strange(made: Certificates) -> tuple[str, dict[str, Path]]:
    return made.asks_for_certificates, {"CA": made.ca, "CERTIFICATE": made.stranger}


def _plain(made: Certificates) -> tuple[str, dict[str, Path]]:
    return "", {"CA": made.ca}


def _no_authority(made: Certificates) -> tuple[str, dict[str, Path]]:
    made.ca.write_text("")
    return made.server_config(), {"CA": made.ca}


TLS_FAULTS = {
    "unable to get local issuer certificate": _unknown,
    "certificate has expired": _expired,
    "certificate is not valid for '127.0.0.1'": _misnamed,
    "certificate required": _anonymous,
    "unknown ca": _strange,
    "does not offer it": _plain,
    "no certificate or crl found": _no_authority,
}


@pytest.mark.parametrize("reason", TLS_FAULTS)
def test_where_tls_fails_a_command_says_why_and_which_settings_count(
    tmp_path: Path, reason: str
) -> None:
    """NATS runs, and is at that address: to look for it would lead astray."""
    config, files = TLS_FAULTS[reason](certificates(tmp_path / "pem"))
    with running(NatsServer(tmp_path / "nats", config)) as server:
        variables = {f"REBASER_NATS__TLS__{name}": str(file) for name, file in files.items()}
        variables["REBASER_NATS__URL"] = server.url.replace("nats:", "tls:")
        # Several attempts: in one of them NATS may have gone before its reason was read.
        variables["REBASER_NATS__CONNECT_TIMEOUT"] = "3"
        done = run_command(["queue"], variables)

    assert done.code == Exit.NO_NATS
    assert reason in done.err
    assert "REBASER_NATS__TLS__CA" in done.err.splitlines()[-1]
    assert "Does NATS run" not in done.err


@pytest.mark.parametrize("how", ["password", "token", "nkey", "credentials"])
def test_where_the_login_is_refused_a_command_says_so_once(tmp_path: Path, how: str) -> None:
    """NATS runs, and is at that address: to look for it would lead astray."""
    way = WAYS[how](tmp_path)
    with running(NatsServer(tmp_path / "nats", way.config)) as server:
        variables = {f"REBASER_NATS__{name.upper()}": str(it) for name, it in way.wrong.items()}
        variables |= {"REBASER_NATS__URL": server.url, "REBASER_NATS__CONNECT_TIMEOUT": "2.5"}
        done = run_command(["queue"], variables)

    assert done.code == Exit.NO_NATS
    assert len(done.err.splitlines()) == 2
    assert "Authorization" in done.err.splitlines()[0]
    assert "does not take this login" in done.err.splitlines()[1]


async def test_a_connection_over_tls_ends_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each command would print it."""
    way = _tls(tmp_path)
    with running(NatsServer(tmp_path / "nats", way.config)) as server:
        async with connected(connect_options(settings(server, **way.settings))) as nc:
            await asyncio.to_thread(server.stop)
            await eventually(lambda: not nc.is_connected)

    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("content", ["", "-----BEGIN NATS USER JWT-----\n"])
async def test_a_file_without_credentials_is_reported(tmp_path: Path, content: str) -> None:
    """nats-py would look in it for ever, and nothing else would run."""
    (tmp_path / "creds").write_text(content)
    with pytest.raises(NatsUnreachable, match="no JWT"):
        async with connected(ConnectOptions(credentials=tmp_path / "creds")):
            pass


async def test_an_invalid_seed_is_reported_but_not_shown() -> None:
    with pytest.raises(NatsUnreachable, match="not a valid NKey seed") as told:
        async with connected(ConnectOptions(nkeys_seed="SUhush")):
            pass
    assert "hush" not in str(told.value)


async def test_a_failed_connection_does_not_log_the_urls_password() -> None:
    options = ConnectOptions(servers=("nats://me:hush@127.0.0.1:1",), connect_timeout=0.2)
    with pytest.raises(NatsUnreachable, match=r"nats://127\.0\.0\.1:1") as told:
        async with connected(options):
            pass
    assert "hush" not in str(told.value) + repr(options)


URL_SECRETS = {
    "password": (
        'user: shop, password: "p@ss/w:rd?#,% ü"',
        "shop:p@ss%2Fw:rd%3F%23%2C%25%20%C3%BC",
    ),
    "escaped": ('user: shop, password: "p@ss"', "shop:p%40ss"),
    "token": ('token: "s3cr@t"', "s3cr@t"),
    "escaped-token": ('token: "s3cr@t"', "s3cr%40t"),
}


@pytest.mark.parametrize("kind", URL_SECRETS)
async def test_the_secrets_of_a_url_are_sent_unescaped(tmp_path: Path, kind: str) -> None:
    config, secret = URL_SECRETS[kind]
    with running(NatsServer(tmp_path, f"authorization {{ {config} }}")) as server:
        address = f"{secret}@127.0.0.1:{server.port}"
        for url in (f"nats://{address}", address):
            async with connect(url, connect_timeout=30) as client:
                assert await client._streams.js.stream_names() == []


@pytest.mark.parametrize("secret", ["shop:open", "open"])
async def test_the_secrets_of_a_url_hold_for_servers_that_nats_names_later(
    tmp_path: Path, secret: str
) -> None:
    """The server whose address is known ends for good; its cluster has another."""
    user, _, password = secret.rpartition(":")
    login = f"user: {user}, password: {password}" if user else f"token: {password}"
    config = f'authorization {{ {login} }}\ncluster {{ name: c, listen: "127.0.0.1:-1", '
    known = NatsServer(tmp_path / "known", config + "}", jetstream=False)
    with running(known) as first:
        [route] = re.findall(r"route connections on .*:(\d+)", first.log)
        config += f'routes: ["nats://127.0.0.1:{route}"] }}'
        with running(NatsServer(tmp_path / "later", config, jetstream=False)) as second:
            url = first.url.replace("nats://", f"nats://{secret}@")
            async with connected(ConnectOptions(servers=(url,))) as nc:
                await eventually(lambda: str(second.port) in str(nc.servers))
                first.kill()
                await eventually(lambda: Connection.of(nc).reconnects > 0 and nc.is_connected)
                assert await Connection.of(nc).ping(30)
                assert nc.connected_url is not None
                assert nc.connected_url.port == second.port


@pytest.mark.parametrize(
    "url",
    [
        *(f"nats://u:hush{each}more@127.0.0.1:4222" for each in "/?# \t[,"),
        *(f"nats://u:12{each}hush@127.0.0.1:4222" for each in "/?# "),
        "nats://hush/more@127.0.0.1",
        "nats://u:a://hush@127.0.0.1",
        "u:hush more@127.0.0.1",
        "http://u:hush@127.0.0.1",
        "nats://u:hush%ff@127.0.0.1",
    ],
)
def test_a_secret_that_breaks_its_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(BadServerUrl) as refused:
        ConnectOptions(servers=servers_of(url))
    with pytest.raises(ValidationError) as no_setting:
        Settings.model_validate({"nats": {"url": url}})

    assert "hush" not in f"{refused.value}{refused.value.__cause__}{no_setting.value}"
    assert "%2F for /" in str(refused.value) or "begins with nats" in str(refused.value)
    assert str(refused.value) in str(no_setting.value)


def test_a_host_may_be_an_address_of_ipv6() -> None:
    options = ConnectOptions(servers=("nats://u:p%5D@[::1]:4222",))

    assert options.secrets == ("u", "p]", None)
    assert options.redacted_servers == "nats://[::1]:4222"


def test_urls_with_different_secrets_are_refused() -> None:
    urls = ("nats://a:hush@127.0.0.1:1", "nats://127.0.0.1:2", "nats://b:hush@127.0.0.1:3")

    with pytest.raises(BadServerUrl, match="different users") as refused:
        ConnectOptions(servers=urls)

    assert "hush" not in str(refused.value)
    assert ConnectOptions(servers=urls[:2])


@pytest.mark.parametrize("broken", ["certificate", "ca"])
async def test_an_unreadable_certificate_is_reported_by_its_setting(
    tmp_path: Path, broken: str
) -> None:
    (tmp_path / "file.pem").write_text("nothing")
    told = Settings.model_validate({"nats": {"tls": {broken: tmp_path / "file.pem"}}})
    with pytest.raises(NatsUnreachable, match=r"REBASER_NATS__TLS__\*: .*file\.pem"):
        async with connected(connect_options(told)):
            pass
