"""Access to the ops endpoint: by token or, without one, from this machine only."""

import hmac
import ipaddress
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from rebaser_server.errors import OpsNotStarted
from rebaser_server.settings.access import OpsSettings

_COOKIE: Final = "rebaser-ops"
_OPEN: Final = ("/healthz", "/readyz")
"""Paths that need no token: probes have none, and learn only yes or no and the reason."""

_WITH_VALUES: Final = "/change-set"
"""How the paths begin that show values: other machines need a token for them."""

_UNAUTHORIZED: Final = (
    "A token is required: send `Authorization: Bearer …`, or open /?token=… in a browser.\n"
)
_FORBIDDEN_VALUES: Final = "Values are shown to who has the token: set REBASER_OPS__TOKEN.\n"
_FORBIDDEN_HOST: Final = "Forbidden host: use localhost or an IP address.\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Admits a request to the endpoint, or answers with the reason for a refusal."""

    def __init__(self, ops: OpsSettings) -> None:
        self._token = ops.token.get_secret_value() if ops.token else None
        self._local = _is_loopback(ops.host)

    @property
    def is_open(self) -> bool:
        """Whether other machines reach the endpoint without a token."""
        return self._token is None and not self._local

    def middleware(self) -> Any:
        """The middleware for aiohttp."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return self._refusal(request) or await handler(request)

        return guard

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.path in _OPEN:
            return None
        if self._token is None:
            if self.is_open and request.path.startswith(_WITH_VALUES):
                return web.Response(status=403, text=_FORBIDDEN_VALUES)
            return self._unless_local(request)
        if _same(request.query.get("token"), self._token):
            # The browser gets a cookie, and the token disappears from the address bar.
            home = web.HTTPSeeOther(request.path)
            home.set_cookie(
                _COOKIE, self._token, httponly=True, samesite="Strict", secure=request.secure
            )
            raise home
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        token = bearer if kind.lower() == "bearer" else request.cookies.get(_COOKIE)
        if _same(token, self._token):
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"}, text=_UNAUTHORIZED)

    def _unless_local(self, request: web.Request) -> web.Response | None:
        """Refuse foreign host names: a hostile page's name may resolve to this machine."""
        name = (request.url.host or "").strip("[]")
        if not self._local or _is_loopback(name):
            return None
        return web.Response(status=403, text=_FORBIDDEN_HOST)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(sent: str | None, token: str) -> bool:
    return sent is not None and hmac.compare_digest(
        sent.encode("utf-8", "surrogateescape"), token.encode()
    )


def tls_of(ops: OpsSettings) -> ssl.SSLContext | None:
    """The TLS context of the settings; None without TLS.

    Raises:
        OpsNotStarted: certificate or key cannot be read.
    """
    if ops.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(ops.certificate, ops.key, password=lambda: "")
    except OSError as error:  # an `SSLError` is one
        raise OpsNotStarted(f"ops endpoint: {ops.certificate}: {error}") from error
    return context
