"""Who may look at the ops endpoint: who has the token, or where there is none, who is here."""

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
"""Answered without the token: probes have none, and learn nothing but yes or no and why."""

_HOW: Final = (
    "this endpoint asks for a token: send `Authorization: Bearer …`, "
    "or open /?token=… in a browser\n"
)
_ELSEWHERE: Final = "this endpoint is asked by the name localhost, or by an address\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """Lets a request through, or says what is missing."""

    def __init__(self, ops: OpsSettings) -> None:
        self._token = ops.token.get_secret_value() if ops.token else None
        self._local = _is_loopback(ops.host)

    @property
    def is_open(self) -> bool:
        """Whether everybody may look who can reach it from another machine."""
        return self._token is None and not self._local

    def middleware(self) -> Any:
        """As aiohttp wants it."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            return self._refusal(request) or await handler(request)

        return guard

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.path in _OPEN:
            return None
        if self._token is None:
            return self._unless_here(request)
        if _same(request.query.get("token"), self._token):
            # So a browser need not send a header: the token leaves the address bar.
            home = web.HTTPSeeOther(request.path)
            home.set_cookie(
                _COOKIE, self._token, httponly=True, samesite="Strict", secure=request.secure
            )
            raise home
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        given = bearer if kind.lower() == "bearer" else request.cookies.get(_COOKIE)
        if _same(given, self._token):
            return None
        return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"}, text=_HOW)

    def _unless_here(self, request: web.Request) -> web.Response | None:
        """A page in the user's browser may have its own name lead to this machine."""
        name = (request.url.host or "").strip("[]")
        if not self._local or _is_loopback(name):
            return None
        return web.Response(status=403, text=_ELSEWHERE)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(given: str | None, token: str) -> bool:
    return given is not None and hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), token.encode()
    )


def tls_of(ops: OpsSettings) -> ssl.SSLContext | None:
    """What to listen with, if with TLS.

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
