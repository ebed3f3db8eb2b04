"""From settings to a connection to NATS, and to the JetStream behind it."""

import ssl
from pathlib import Path
from typing import Final

from nats.aio.client import Client

from rebaser_core.jetstream import ConnectOptions, JetStream, NatsUnreachable
from rebaser_server.settings.access import NatsSettings, NatsTlsSettings
from rebaser_server.settings.settings import Settings

_NO_TLS: Final = NatsTlsSettings()


def connect_options(settings: Settings) -> ConnectOptions:
    """Where and as whom to connect.

    Raises:
        NatsUnreachable: a certificate, key or seed cannot be read.
    """
    nats = settings.nats
    return ConnectOptions(
        servers=tuple(url.strip() for url in nats.url.split(",")),
        name=f"rebaser {settings.instance_id}",
        user=nats.user,
        password=nats.password.get_secret_value() if nats.password else None,
        token=nats.token.get_secret_value() if nats.token else None,
        nkeys_seed=_read_seed(nats.nkey) if nats.nkey else None,
        credentials=nats.creds,
        tls=_tls_context(nats.tls),
        tls_hostname=nats.tls.hostname,
        tls_handshake_first=nats.tls.handshake_first,
        inbox_prefix=nats.inbox_prefix,
        connect_timeout=nats.connect_timeout.total_seconds(),
    )


def open_jetstream(nc: Client, settings: NatsSettings) -> JetStream:
    return JetStream(nc, api_prefix=settings.api_prefix, domain=settings.domain)


def _read_seed(file: Path) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, ValueError) as error:
        raise NatsUnreachable(f"REBASER_NATS__NKEY: {file}: {type(error).__name__}") from error


def _tls_context(settings: NatsTlsSettings) -> ssl.SSLContext | None:
    if settings == _NO_TLS:
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except OSError as error:  # an `SSLError` is one
        files = ", ".join(str(f) for f in (settings.ca, settings.certificate, settings.key) if f)
        raise NatsUnreachable(f"REBASER_NATS__TLS__*: {files}: {error}") from error
    return context


def _no_password() -> str:
    """Return the key's password to OpenSSL, which would otherwise ask for it at the terminal."""
    return ""
