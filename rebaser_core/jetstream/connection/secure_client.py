"""A client that never sends secrets in plain text, and takes them anew for each attempt."""

import asyncio
from typing import Any, Final

import nats.errors
from nats.aio.client import RawCredentials, Srv
from nats.aio.transport import TcpTransport

from rebaser_core.jetstream.connection.fast_client import FastClient
from rebaser_core.jetstream.connection.login import Login

REFUSED_WAIT: Final = 1.0  # seconds until a client that the server refused tries again

_REFUSALS: Final = (
    "authorization violation",
    "authentication timeout",
    "authentication expired",
    "authentication revoked",
    "account authentication expired",
)
"""What the server says to clients whose secrets it does not take, in lower case."""


class NotEncrypted(nats.errors.Error):
    """The server offers no TLS, or an attacker removed its offer; nothing was sent."""

    def __str__(self) -> str:
        return "TLS is configured, and the server does not offer it"


class TlsTransport(TcpTransport):
    """As nats-py's, with a reader and a protocol that know of the connection in TLS.

    Without, asyncio warns when the connection ends, and reads on however much waits to be read.
    """

    def __init__(self, opened: TcpTransport) -> None:
        vars(self).update(vars(opened))

    async def connect_tls(self, *where: Any, **how: Any) -> None:
        await super().connect_tls(*where, **how)
        if self._io_writer is None:
            return
        encrypted = self._io_writer.transport
        protocol: asyncio.BaseProtocol | None = encrypted.get_protocol()
        if protocol is not None:  # it is gone once the other side refused
            protocol.connection_made(encrypted)


class SecureClient(FastClient):
    """If TLS is configured, it sends nothing without TLS, nor to a server it cannot verify.

    nats-py itself goes on in plain text, password and all, if the server's greeting
    does not ask for TLS; and an attacker in between can remove that from the greeting.

    Credentials, keys and certificates that were renewed in their files are used at the next
    attempt. A client that the server refuses tries again for ever: they may be renewed late.
    """

    login = Login()
    tls_required = False

    async def _connect_to_server(self, s: Srv) -> None:
        if is_refusal(self._err):
            await asyncio.sleep(REFUSED_WAIT)
        self._log_in()
        await super()._connect_to_server(s)
        if isinstance(self._transport, TcpTransport):
            self._transport = TlsTransport(self._transport)

    def _log_in(self) -> None:
        """Have nats-py use the secrets as they are now."""
        if (context := self.login.read_tls()) is not None:
            self.options["tls"] = context
        if (credentials := self.login.read_credentials()) is not None:
            self._user_credentials = RawCredentials(credentials)
            self._setup_nkeys_connect()
        elif (seed := self.login.read_seed()) is not None:
            self._nkeys_seed_str = seed
            self._setup_nkeys_connect()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.tls_required and not info.get("tls_required"):
            raise NotEncrypted
        await super()._process_info(info, initial_connection)


def is_refusal(error: Exception | None) -> bool:
    """Whether the server did not take the secrets."""
    return any(said in str(error).lower() for said in _REFUSALS)
