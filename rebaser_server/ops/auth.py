"""Access to the ops endpoint: by tokens with roles or, without any, from this machine only.

`FileChanges` notices that files were replaced or written.
"""

import hmac
import ipaddress
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web
from yarl import URL

from rebaser_server.errors import OpsNotStarted
from rebaser_server.settings.settings import OpsSettings, Role


class FileChanges:
    """Comparison of files with their state at the last call of `found`; reads none of them."""

    def __init__(self, files: Sequence[Path | None]) -> None:
        self._files = [file for file in files if file is not None]
        self._states = self._look()

    def found(self) -> bool:
        """Whether one of the files has changed since the last call."""
        before, self._states = self._states, self._look()
        return self._states != before

    def _look(self) -> list[tuple[int, ...]]:
        """Inode, size and time of the last change of each file; nothing for a missing one."""
        return [_state(file) for file in self._files]


def _state(file: Path) -> tuple[int, ...]:
    try:
        state = file.stat()
    except OSError:
        return ()
    return state.st_ino, state.st_size, state.st_mtime_ns


log: Final = structlog.get_logger()

_OPEN: Final = ("/healthz", "/readyz")
"""Paths that need no token: probes have none, and learn only yes or no and the reason."""

_WITH_VALUES: Final = ("/change-set", "/dead-letters", "/services", "/actions")
"""Beginnings of the paths that show or change values: other machines need a token for them."""

_SLASHES: Final = "/\\"
"""Slashes of both kinds: browsers take a path that begins with two of them for another site's
address."""

_UNAUTHORIZED: Final = (
    "A token is required: send `Authorization: Bearer …`, or open /?token=… in a browser.\n"
)
_FORBIDDEN_VALUES: Final = "Values are shown to who has the token: set REBASER_OPS__TOKEN.\n"
_FORBIDDEN_HOST: Final = "Forbidden host: use localhost or an IP address.\n"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """The person or program that sent a request to the endpoint."""

    name: str
    """Name of the token, as it stands in the log; without tokens the user of this process."""
    role: Role


class Guard:
    """Admits a request to the endpoint, or answers with the reason for a refusal.

    Tokens in a file are valid from when they are written there until they are removed.
    """

    def __init__(self, ops: OpsSettings, local_name: str, deployment: str = "") -> None:
        """Read the tokens. `local_name`: name of visitors from this machine if no token is set.

        `deployment` is the deployment's id: cookies of a host do not tell its ports apart.
        """
        self._ops = ops
        self._cookie = f"rebaser-ops-{deployment}"
        self._file = FileChanges([ops.tokens_file])
        self._tokens = _visitors(ops)
        self._local = _is_loopback(ops.host)
        self._without_token = Visitor(local_name, ops.local_role if self._local else Role.VIEWER)

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the endpoint without a token."""
        return not self._tokens and not self._local

    def middleware(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return self._refusal(request) or await handler(request)

        return guard

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.path in _OPEN:
            return None
        self._renew_tokens()
        if not self._tokens:
            if self.is_open and request.path.startswith(_WITH_VALUES):
                return web.Response(status=403, text=_FORBIDDEN_VALUES)
            return self._unless_local(request)
        in_address = request.query.get("token")
        if self._owner_of(in_address) is not None:
            # The browser gets a cookie, and the token disappears from the address bar.
            # Escapes stay: without them "/%09/host" is the address of another site, too.
            path = "/" + request.rel_url.raw_path.lstrip(_SLASHES)
            rest = request.rel_url.without_query_params("token").raw_query_string
            home = web.HTTPSeeOther(URL(f"{path}{rest and '?'}{rest}", encoded=True))
            derived = self._derived(in_address or "")
            # Lax: a link in a chat leads in. Actions refuse what another site sends by themselves.
            home.set_cookie(
                self._cookie, derived, httponly=True, samesite="Lax", secure=request.secure
            )
            raise home
        if self.visitor(request) is not None:
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"}, text=_UNAUTHORIZED)

    def visitor(self, request: web.Request) -> Visitor | None:
        """Sender of the request; None without a token of the settings."""
        if not self._tokens:
            return self._without_token
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return self._owner_of(bearer)
        return self._owner_of(request.cookies.get(self._cookie), self._derived)

    def admitted(self, request: web.Request) -> Visitor:
        """Sender of a request that the guard has admitted."""
        visitor = self.visitor(request)
        if visitor is None:
            raise web.HTTPUnauthorized
        return visitor

    def _owner_of(
        self, sent: str | None, form: Callable[[str], str] = lambda token: token
    ) -> Visitor | None:
        """Owner of the token that was sent in this form.

        Each token is compared, so that the time does not tell which.
        """
        if sent is None:
            return None
        found = [visitor for token, visitor in self._tokens if _same(sent, form(token))]
        return found[0] if found else None

    def _derived(self, token: str) -> str:
        """Content of the cookie: valid for as long as the token, which it does not contain."""
        return hmac.new(token.encode(), self._cookie.encode(), "sha256").hexdigest()

    def _renew_tokens(self) -> None:
        """Read the file of tokens if it changed; one that cannot be read changes nothing."""
        if not self._file.found():
            return
        try:
            self._tokens = _visitors(self._ops)
        except (OSError, ValueError) as error:
            log.error("tokens not renewed", file=str(self._ops.tokens_file), error=str(error))
        else:
            log.info("tokens renewed", names=[visitor.name for _, visitor in self._tokens])

    def _unless_local(self, request: web.Request) -> web.Response | None:
        """Refuse foreign host names: a hostile page's name may resolve to this machine."""
        with suppress(ValueError):  # the header is no name of a host
            if not self._local or _is_loopback((request.url.host or "").strip("[]")):
                return None
        return web.Response(status=403, text=_FORBIDDEN_HOST)


def _visitors(ops: OpsSettings) -> list[tuple[str, Visitor]]:
    """Each token, with its owner."""
    return [
        (token.secret.get_secret_value(), Visitor(token.name, token.role))
        for token in ops.access_tokens()
    ]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "surrogateescape"), token.encode())


def tls_of(ops: OpsSettings) -> ssl.SSLContext | None:
    """The TLS context of the settings; None without TLS.

    A certificate that was renewed in its file is shown to the next visitor; if it cannot be read
    then, the former one stays.

    Raises:
        OpsNotStarted: certificate or key cannot be read.
    """
    if ops.certificate is None:
        return None
    try:
        context = _load_certificate(ops)
    except OSError as error:  # an `SSLError` is one
        raise OpsNotStarted(f"ops endpoint: {ops.certificate}: {error}") from error
    files = FileChanges([ops.certificate, ops.key])
    renewed = context

    def show(connection: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        nonlocal renewed
        if files.found():
            try:
                renewed = _load_certificate(ops)
            except OSError as error:
                log.error("certificate not renewed", file=str(ops.certificate), error=str(error))
        connection.context = renewed

    context.sni_callback = show
    return context


def _load_certificate(ops: OpsSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ops.certificate or "", ops.key, password=lambda: "")
    return context
