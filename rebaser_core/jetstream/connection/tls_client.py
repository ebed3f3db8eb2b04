"""A client that never sends secrets in plain text when TLS is configured."""

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
import nkeys

from rebaser_core.jetstream.connection.fast_client import FastClient
from rebaser_core.jetstream.errors import NatsUnreachable

_CREDENTIALS_MARKS: Final = (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED")


class NotEncrypted(nats.errors.Error):
    """The server offers no TLS, or an attacker removed its offer; nothing was sent."""

    def __str__(self) -> str:
        return "TLS is configured, and the server does not offer it"


class TlsClient(FastClient):
    """If TLS is configured, it sends nothing without TLS, nor to a server it cannot verify.

    nats-py itself goes on in plain text, password and all, if the server's greeting
    does not ask for TLS; and an attacker in between can remove that from the greeting.
    """

    tls_required = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.tls_required and not info.get("tls_required"):
            raise NotEncrypted
        await super()._process_info(info, initial_connection)


def requires_tls(servers: tuple[str, ...], tls: ssl.SSLContext | None) -> bool:
    return tls is not None or any(urlsplit(url).scheme in ("tls", "wss") for url in servers)


def without_credentials(url: str) -> str:
    """The URL without user and password."""
    scheme, mark, rest = url.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def check_credentials(file: Path) -> None:
    """Raise `NatsUnreachable` if it is no credentials file: nats-py would look in it for ever."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise NatsUnreachable(f"credentials file {file}: {error.strerror}") from error
    if not all(mark in text for mark in _CREDENTIALS_MARKS):
        raise NatsUnreachable(f"credentials file {file}: it contains no JWT and seed of a user")


def check_seed(seed: str) -> None:
    """Raise `NatsUnreachable` if it is not the seed of an NKey, without saying what it is."""
    with suppress(Exception):  # whatever is wrong with it shows in many ways
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
        return
    raise NatsUnreachable("not a valid NKey seed: a seed begins with SU and has 58 characters")
