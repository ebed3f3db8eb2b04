"""As whom each part of a round logs in to NATS: as nobody, or by the accounts of `deploy/nats`."""

from dataclasses import dataclass

from rebaser_core.jetstream import ConnectOptions
from tests.security.roles import ACCOUNTS, API_PREFIX, ROLES, password

WITNESS = "witness"
"""A user that the deployment has not: it may do everything in the account of the Rebasers."""


@dataclass(frozen=True)
class Access:
    """With accounts, a client has the rights of the role `client` and no others."""

    accounts: bool = False

    @property
    def config(self) -> str:
        """For the NATS server."""
        if not self.accounts:
            return ""
        text = ACCOUNTS.read_text()
        for role in ROLES:
            text = text.replace(f"$NATS_{role.upper()}_PASSWORD", password(role))
        witness = f"{{ user: {WITNESS}, password: {password(WITNESS)} }}"
        return text.replace("users: [", f"users: [ {witness}", 1)

    def options(self, role: str, servers: tuple[str, ...]) -> ConnectOptions:
        if not self.accounts:
            return ConnectOptions(servers=servers)
        prefix = "_INBOX" if role == WITNESS else f"_INBOX.{role}"
        return ConnectOptions(
            servers=servers, user=role, password=password(role), inbox_prefix=prefix
        )

    def api_prefix(self, role: str) -> str | None:
        return API_PREFIX if self.accounts and role == "client" else None

    @property
    def variables(self) -> dict[str, str]:
        """Settings of a daemon, without their prefix."""
        if not self.accounts:
            return {}
        return {
            "NATS__USER": "server",
            "NATS__PASSWORD": password("server"),
            "NATS__INBOX_PREFIX": "_INBOX.server",
        }
