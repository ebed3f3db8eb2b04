"""A connection with a lifetime: the only caller of `nats.connect` and `close`.

`Login` reads secrets and certificates anew for each attempt to connect. `SecureClient` never sends
secrets in plain text.
"""

import asyncio
import contextlib
import errno
import logging
import random
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import nats.errors
from nats.aio.client import Client, RawCredentials, Srv
from nats.aio.transport import TcpTransport

from rebaser_core.jetstream import deadlines
from rebaser_core.jetstream.connection import Connection
from rebaser_core.jetstream.errors import (
    BadServerUrl,
    LoginRefused,
    NatsUnreachable,
    TlsFailed,
    propagate_cancellation,
)
from rebaser_core.jetstream.fast_client import MAX_CONTROL_LINE, FastClient

_CREDENTIALS: Final = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+\S+\s+-+END NATS USER JWT-+\s.*"
    r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)
"""Credentials as NATS's tool nsc writes them; the group is the seed."""


@dataclass(frozen=True, slots=True)
class Login:
    """Sources of secrets; the methods return the secrets as they are at that moment."""

    credentials: Path | None = None
    """A credentials file, as NATS's tool nsc writes it."""
    nkeys_seed: str | Path | None = field(default=None, repr=False)
    """The seed of an NKey, or the file that has it."""
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None

    def read_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context; an error of the function that makes it is passed on."""
        return self.tls() if callable(self.tls) else self.tls

    def read_credentials(self) -> str | None:
        """Return the content of the credentials file.

        Raises:
            NatsUnreachable: the file is incomplete; nats-py would search it for ever.
        """
        if self.credentials is None:
            return None
        where = f"credentials file {self.credentials}"
        text = _read(self.credentials, where)
        found = _CREDENTIALS.search(text)
        if found is None:
            raise NatsUnreachable(f"{where}: it contains no JWT and seed of a user")
        _require_seed(found[1], where)
        return text

    def read_seed(self) -> str | None:
        """Return the seed of the NKey.

        Raises:
            NatsUnreachable: it is not a seed; the message does not show it.
        """
        if self.nkeys_seed is None:
            return None
        if isinstance(self.nkeys_seed, str):
            return _require_seed(self.nkeys_seed, "nkeys_seed")
        where = f"NKey file {self.nkeys_seed}"
        return _require_seed(_read(self.nkeys_seed, where), where)


def _read(file: Path, where: str) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise NatsUnreachable(f"{where}: {error.strerror}") from error
    except ValueError as error:
        raise NatsUnreachable(f"{where}: it is no text") from error


def _require_seed(seed: str, where: str) -> str:
    import nkeys  # slow, and not needed without a key

    with suppress(Exception):  # a bad file shows in many kinds of errors
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
        return seed
    raise NatsUnreachable(
        f"{where}: not a valid NKey seed: a seed begins with SU and has 58 characters"
    )


def without_credentials(url: str) -> str:
    """Return the URL without user and password, which may have any characters."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    return scheme + mark + rest.rpartition("@")[2]


def requires_tls(servers: tuple[str, ...], login: Login) -> bool:
    return login.tls is not None or any(urlsplit(url).scheme in ("tls", "wss") for url in servers)


_REFUSED_WAIT: Final = 1.0  # seconds until a client that the server refused tries again

_REFUSALS: Final = (
    "authorization violation",
    "authentication timeout",
    "authentication expired",
    "authentication revoked",
    "account authentication expired",
)
"""Texts, in lower case, by which the server refuses a client's secrets."""


class NotEncrypted(nats.errors.Error):
    """The server offers no TLS, or an attacker removed its offer; nothing was sent."""

    def __str__(self) -> str:
        return "TLS is configured, and the server does not offer it"


class _TlsTransport(TcpTransport):
    """A TLS transport as nats-py's, whose reader and protocol know of the connection in TLS.

    Otherwise asyncio warns when the connection ends, and never pauses reading.
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
    """A client that, if TLS is configured, sends nothing in plain text or to an unverified server.

    nats-py itself goes on in plain text, password and all, if the server's greeting
    does not ask for TLS; and an attacker in between can remove that from the greeting.

    Credentials, keys and certificates that were renewed in their files are used at the next
    attempt. A client that the server refuses tries again for ever: they may be renewed late.
    """

    login = Login()
    tls_required = False

    async def _connect_to_server(self, s: Srv) -> None:
        if _is_refusal(self._err):
            await asyncio.sleep(_REFUSED_WAIT)
        self._log_in()
        await super()._connect_to_server(s)
        if isinstance(self._transport, TcpTransport):
            self._transport = _TlsTransport(self._transport)

    def _log_in(self) -> None:
        """Give nats-py the secrets as they are now."""
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


def _is_refusal(error: Exception | None) -> bool:
    """Whether the server did not take the secrets."""
    return any(said in str(error).lower() for said in _REFUSALS)


log: Final = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = 2.0  # seconds
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_ESCAPING: Final = (
    "; in a user, password or token, characters with a meaning in URLs are escaped: %2F for /, %3F "
    "for ?, %23 for #, %2C for a comma, %20 for a blank, %25 for %"
)
_RECONNECT_WAIT: Final = (0.25, 0.5)  # seconds, one value for each connection: no stampede


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """Servers, secrets and times of a connection; durations in seconds.

    Raises:
        TypeError: `servers` is one text, of which each letter would be a server.
        BadServerUrl: one of them is no URL of a NATS server, or two have different secrets.
    """

    servers: tuple[str, ...] = field(default=("nats://127.0.0.1:4222",), repr=False)
    """URLs of the servers; a tuple also for one.

    The user and password of a URL, or its token, hold for all servers, also for those that NATS
    names later. `user`, `token`, `nkeys_seed` and `credentials` come before them.
    """
    name: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    nkeys_seed: str | Path | None = field(default=None, repr=False)
    """The seed of an NKey, or a file that has it, which is read for each attempt to connect."""
    credentials: Path | None = None
    """A credentials file, which is read for each attempt to connect."""
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None
    """TLS context. With it, or with a `tls://` URL, nothing is sent to a server without TLS.

    A function is called for each attempt to connect, so that renewed certificates are used.
    """
    tls_hostname: str | None = None
    """The name in the server's certificate, where that is not the one in the URL."""
    tls_handshake_first: bool = False
    """Begin with TLS before the server's greeting; it must be set so there, too."""
    max_control_line: int = MAX_CONTROL_LINE
    """Maximum bytes of subject and reply subject together, if the server takes less than the
    default."""
    inbox_prefix: str = "_INBOX"
    """Beginning of all subjects for answers: the part of `_INBOX` that this user may read."""
    connect_timeout: float = 10.0
    """Deadline for the first connection. Later ones are tried for ever."""
    ping_interval: float = 10.0
    """Seconds between pings; when two are unanswered, the connection is made anew."""
    probe_interval: float = 15.0
    """Seconds between round trips that show that the client itself still reads."""
    probe_timeout: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.servers, str):
            raise TypeError("servers must be a tuple of URLs: (url,)")
        if len(set(self._url_secrets)) > 1:
            raise BadServerUrl(
                f"the URLs of {self.redacted_servers} have different users, passwords or tokens: "
                "one connection has one user, so give all URLs the same"
            )

    @property
    def _url_secrets(self) -> list[tuple[str, str | None]]:
        """User and password, or token and None, of each URL that has them."""
        found = []
        for url in self.servers:
            parts = _server_parts(url, is_secret="@" in "".join(self.servers))
            if parts.username is not None:
                password = parts.password
                found.append((unquote(parts.username), password and unquote(password)))
        return found

    @property
    def secrets(self) -> tuple[str | None, str | None, str | None]:
        """User, password and token."""
        others = (self.user, self.token, self.nkeys_seed, self.credentials)
        if not self._url_secrets or any(other is not None for other in others):
            return self.user, self.password, self.token
        user, password = self._url_secrets[0]
        return (None, None, user) if password is None else (user, password, None)

    @property
    def login(self) -> Login:
        return Login(self.credentials, self.nkeys_seed, self.tls)

    @property
    def redacted_servers(self) -> str:
        """Servers without user and password, for people."""
        return ", ".join(without_credentials(url) for url in self.servers)


@contextlib.asynccontextmanager
async def connected(
    options: ConnectOptions, *, on_error: Callable[[Exception], None] = lambda _: None
) -> AsyncIterator[Client]:
    """Connect while the body runs. `on_error` gets each error of the connection.

    A lost connection is made again for ever, a fraction of a second after the server is back; so is
    one that the server closed because of a message. A client whose credentials the server refuses
    tries again every second, with what their files have then. Leaving the body closes it, without
    draining, without raising, in two seconds at most.

    Raises:
        NatsUnreachable: credentials or key cannot be read; or every server refused the first
            connection, or has a name that does not resolve; or there was none within
            `connect_timeout`, which names every reason met.
        TlsFailed, LoginRefused: as `NatsUnreachable`, and TLS, or the login, was a reason.
    """
    nc = SecureClient()
    nc.max_control_line = options.max_control_line
    nc.login = options.login
    nc.tls_required = requires_tls(options.servers, options.login)
    link = Connection.of(nc)
    link.has_callbacks = True
    try:
        await _connect(nc, link, options, on_error)
        probe = asyncio.create_task(_probe(link, options), name="connection probe")
        try:
            yield nc
        finally:
            probe.cancel()
            await asyncio.wait([probe])
    finally:
        await _close(link)


async def _connect(
    nc: Client, link: Connection, options: ConnectOptions, on_error: Callable[[Exception], None]
) -> None:
    reasons: dict[str, Exception] = {}  # each once: a refusal is not hidden by a later reset
    connecting = asyncio.current_task()
    cancelled = connecting.cancelling() if connecting else 0

    refused = 0  # attempts, one after the other, at servers that are not there

    is_refused = False  # whether the server does not take the login of a connection that was up

    async def error_cb(error: Exception) -> None:
        nonlocal refused, is_refused
        reasons[f"{type(error).__name__}: {error}"] = error
        refused = refused + 1 if _is_absent(error) else 0
        log.info("nats connection: %s: %s", type(error).__name__, error)
        if _is_refusal(error) and has_connected and not is_refused:
            is_refused = True
            log.warning("nats connection: login refused, tried again every second: %s", error)
        on_error(error)
        task = asyncio.current_task()
        if task is not None and task is connecting and task.cancelling() > cancelled:
            # Before Python 3.12 `wait_for` swallows a cancellation that comes with its result,
            # and nats-py would connect for ever.
            raise asyncio.CancelledError
        is_first = task is not None and task is connecting and not has_connected
        if is_first and refused >= len(options.servers):
            raise NatsUnreachable(
                f"no NATS server at {options.redacted_servers}: {'; '.join(reasons)}"
            ) from error

    async def changed() -> None:
        nonlocal is_refused
        if is_refused and nc.is_connected:
            is_refused = False
            log.warning("nats connection: login accepted again")
        # an error of a callback would end nats-py's reader or its reconnecting
        with contextlib.suppress(Exception):
            await link.notify()

    has_connected = False
    given = _nats_options(options)
    try:
        async with deadlines.within(options.connect_timeout):
            with propagate_cancellation():
                await nc.connect(
                    **given,
                    error_cb=error_cb,
                    disconnected_cb=changed,
                    reconnected_cb=changed,
                    closed_cb=changed,
                )
        has_connected = True
    except TimeoutError:
        kind = LoginRefused if any(map(_is_refusal, reasons.values())) else NatsUnreachable
        if any(map(_is_of_tls, reasons.values())):
            kind = TlsFailed
        raise kind(
            f"no connection to {options.redacted_servers} within {options.connect_timeout} s"
            + (f": {'; '.join(reasons)}" if reasons else "")
        ) from next(reversed(reasons.values()), None)
    except (nats.errors.Error, OSError) as error:
        kind = TlsFailed if _is_of_tls(error) else NatsUnreachable
        raise kind(f"cannot connect to {options.redacted_servers}: {error}") from error


def _is_of_tls(error: Exception) -> bool:
    return isinstance(error, (ssl.SSLError, NotEncrypted))


def _is_absent(error: Exception) -> bool:
    """Whether nothing listens at a server's address, or its name does not resolve."""
    if isinstance(error, socket.gaierror):  # for some time, the resolver may not answer
        return error.errno != socket.EAI_AGAIN
    return isinstance(error, OSError) and (
        isinstance(error, ConnectionRefusedError)
        # a name with several addresses has the reasons in its text alone
        or f"[Errno {errno.ECONNREFUSED}]" in str(error)
    )


def _server_parts(url: str, *, is_secret: bool) -> SplitResult:
    """Return the parts of a server's URL. With `is_secret` no part of it may be shown but its host.

    Raises:
        BadServerUrl: it is no URL of a NATS server.
    """
    shown = repr(without_credentials(url)) if "@" in url or not is_secret else "one of the servers"
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() not in _SCHEMES:
        raise BadServerUrl(
            f"{shown} is no NATS server: a URL of one begins with {', '.join(_SCHEMES)}, as "
            "nats://127.0.0.1:4222; http:// is the status page's or NATS's monitoring"
        )
    try:
        parts = urlsplit(url if separator else f"nats://{url}")
        is_complete = bool(parts.hostname) and parts.port != 0
        unquote(parts.netloc, errors="strict")
    except ValueError:
        is_complete = False
    if is_complete and min(url) > " " and "@" not in parts.path + parts.query + parts.fragment:
        return parts
    raise BadServerUrl(
        f"{shown} is no URL of a NATS server: one has a host and a port from 1 to 65535, as "
        f"nats://127.0.0.1:4222{_ESCAPING if is_secret else ''}"
    )


def _nats_options(options: ConnectOptions) -> dict[str, Any]:
    credentials = options.login.read_credentials()
    user, password, token = options.secrets
    return {
        # nats-py would use the secrets of a URL for that server alone, and escaped
        "servers": [without_credentials(url) for url in options.servers],
        "name": options.name or None,
        "user": user,
        "password": password,
        "token": token,
        "nkeys_seed_str": options.login.read_seed(),
        "user_credentials": None if credentials is None else RawCredentials(credentials),
        "tls": options.login.read_tls(),
        "tls_hostname": options.tls_hostname,
        "tls_handshake_first": options.tls_handshake_first,
        "inbox_prefix": options.inbox_prefix,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": random.uniform(*_RECONNECT_WAIT),
        "connect_timeout": min(2.0, options.connect_timeout),  # one attempt's
        "ping_interval": options.ping_interval,
        "max_outstanding_pings": 2,
    }


async def _probe(link: Connection, options: ConnectOptions) -> None:
    """Make the connection anew when it claims to be up and yet does not answer.

    A reader that died (nats-py logs the error and goes on without one) shows in
    nothing else: publishing succeeds, and so does `flush`.
    """
    while True:
        await asyncio.sleep(options.probe_interval)
        if not link.is_connected or await _is_responding(link, options.probe_timeout):
            continue
        log.warning("nats connection does not answer, reconnecting")
        with contextlib.suppress(Exception):  # a failed probe is repeated
            await link.nc.force_reconnect()


async def _is_responding(link: Connection, timeout: float) -> bool:
    with _logged("round trip failed"):
        return await link.ping(timeout)
    return not link.is_connected  # if it is down, that has been noticed already


async def _close(link: Connection) -> None:
    with _logged("not closed in order"):
        try:
            async with deadlines.within(_CLOSE_TIMEOUT):
                await link.nc.close()
        finally:
            await link.notify()  # a close that takes too long tells none of those who wait


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log and swallow any error that a dead connection raises in the body."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it must end neither probe nor close
        log.info("nats connection: %s: %r", what, error)
