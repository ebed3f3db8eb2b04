"""Settings of who may reach what: how this reaches NATS, and who reaches the ops endpoint."""

from datetime import timedelta
from typing import Annotated, Self

from pydantic import Field, FilePath, SecretStr, model_validator

from rebaser_server.settings.access_tokens import AccessToken, Role, parse_tokens, require_distinct
from rebaser_server.settings.types import Duration, SettingsGroup, Url


class NatsTlsSettings(SettingsGroup):
    """TLS to NATS. With any of these, nothing is said to a server that speaks no TLS."""

    ca: FilePath | None = None
    """PEM: the authority of the server's certificate, if the machine does not trust it."""
    certificate: FilePath | None = None
    """PEM: ours, for a server that asks for one (mutual TLS)."""
    key: FilePath | None = None
    """PEM, without a password; unless it is in the certificate's file."""
    hostname: str | None = None
    """The name in the server's certificate, where it is not the one in the URL."""
    handshake_first: bool = False
    """Begin with TLS before the server's greeting, as its `handshake_first` wants."""

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key without a certificate")
        return self


class NatsSettings(SettingsGroup):
    """How to reach NATS, and under which names our streams are there."""

    url: Url = "nats://127.0.0.1:4222"
    """One URL, or several with commas; `tls://` insists on TLS."""
    tls: NatsTlsSettings = NatsTlsSettings()
    creds: FilePath | None = None
    """A credentials file."""
    nkey: FilePath | None = None
    """A file with the seed of an NKey."""
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    inbox_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] = "_INBOX"
    """What answers come to begins with it: what this user may subscribe to."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Put before every stream and subject of ours: several Rebaser deployments on one NATS."""
    monitoring: Url | None = None
    """URLs of the monitoring ports of all NATS servers, with commas: what tells when they sync."""
    api_prefix: str | None = None
    """JetStream API prefix of an account that exports it (ADR-19)."""
    domain: str | None = None
    """JetStream domain (ADR-19)."""
    connect_timeout: Duration = timedelta(seconds=10)
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Replicas of each stream, where the daemon creates it."""
    batches_rollup: bool = True
    """Whether the bucket of batches is made so that object stores of other makes can put into it;
    if not, no client can wipe what others have put there."""

    @model_validator(mode="after")
    def _exclusive_api_prefix(self) -> Self:
        if self.api_prefix and self.domain:
            raise ValueError("api_prefix and domain exclude each other")
        return self

    @model_validator(mode="after")
    def _exclusive_credentials(self) -> Self:
        credentials = {
            "creds": self.creds,
            "nkey": self.nkey,
            "user": self.user,
            "token": self.token,
        }
        given = [name for name, value in credentials.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if self.password is not None and self.user is None:
            raise ValueError("a password without a user")
        return self


class OpsSettings(SettingsGroup):
    """Where each daemon shows health, metrics and its page."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """7380, or if that is taken any free one; a port that is set must be free."""
    token: SecretStr | None = None
    """Asked for by everything but `/healthz` and `/readyz`; it may read, and nothing else."""
    tokens: SecretStr | None = None
    """Tokens with names and roles: `NAME ROLE TOKEN`, one on each line or between commas."""
    tokens_file: FilePath | None = None
    """A file with such tokens."""
    local_role: Role = Role.VIEWER
    """What people on this machine may do if no token is set and `host` is loopback."""
    certificate: FilePath | None = None
    """PEM; with it the endpoint speaks HTTPS."""
    key: FilePath | None = None

    @model_validator(mode="after")
    def _safe_endpoint(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key without a certificate: it would speak plain HTTP")
        if self.token is not None and not self.token.get_secret_value():
            raise ValueError("the token is empty")
        self.access_tokens()
        return self

    def access_tokens(self) -> list[AccessToken]:
        """All tokens, with their roles.

        Raises:
            ValueError: they cannot be read, or two have one name.
        """
        file = "" if self.tokens_file is None else self.tokens_file.read_text("utf-8")
        given = "" if self.tokens is None else self.tokens.get_secret_value()
        single = [] if self.token is None else [AccessToken("viewer", Role.VIEWER, self.token)]
        tokens = [*single, *parse_tokens(f"{given}\n{file}")]
        if (self.tokens or self.tokens_file) and tokens == single:
            raise ValueError("tokens are set, and there is none among them")
        require_distinct(tokens)
        return tokens
