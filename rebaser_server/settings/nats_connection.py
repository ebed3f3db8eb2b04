"""The connection to NATS, and the JetStream behind it, from the settings."""

import ssl
from functools import partial
from typing import Final

from nats.aio.client import Client

from rebaser_core.jetstream import ConnectOptions, JetStream, TlsFailed
from rebaser_server.settings.settings import (
    NatsSettings,
    NatsTlsSettings,
    Settings,
    servers_of,
)

_NO_TLS: Final = NatsTlsSettings()


def connect_options(settings: Settings) -> ConnectOptions:
    """Return servers and login of the connection.

    Files are read anew each time that a connection is made.
    """
    nats = settings.nats
    return ConnectOptions(
        servers=servers_of(nats.url),
        name=f"rebaser {settings.instance_id}",
        user=nats.user,
        password=nats.password.get_secret_value() if nats.password else None,
        token=nats.token.get_secret_value() if nats.token else None,
        nkeys_seed=nats.nkey,
        credentials=nats.creds,
        tls=None if nats.tls == _NO_TLS else partial(_tls_context, nats.tls),
        tls_hostname=nats.tls.hostname,
        tls_handshake_first=nats.tls.handshake_first,
        inbox_prefix=nats.inbox_prefix,
        connect_timeout=nats.connect_timeout.total_seconds(),
    )


def open_jetstream(nc: Client, settings: NatsSettings) -> JetStream:
    return JetStream(nc, api_prefix=settings.api_prefix)


def _tls_context(settings: NatsTlsSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except OSError as error:  # an `SSLError` is one
        files = ", ".join(str(f) for f in (settings.ca, settings.certificate, settings.key) if f)
        raise TlsFailed(f"REBASER_NATS__TLS__*: {files}: {error}") from error
    return context


def _no_password() -> str:
    """Return an empty password of the key to OpenSSL, which would otherwise ask at the terminal."""
    return ""
