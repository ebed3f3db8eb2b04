"""Roles of the people at the ops endpoint, and the tokens that grant them."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import SecretStr


class Role(StrEnum):
    """What a person may do; each role may do what the roles before it may."""

    VIEWER = "viewer"
    """Read everything."""
    EDITOR = "editor"
    """Change the values of branches."""
    APPROVER = "approver"
    """Change heads: apply a branch, revert a commit of a head."""
    OPERATOR = "operator"
    """Replay dead letters, pause and resume, cancel updates, have checkpoints written."""

    def includes(self, other: "Role") -> bool:
        """Whether this role may do what `other` may."""
        roles = list(Role)
        return roles.index(self) >= roles.index(other)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, its role, and the name that the log gives to what is done with it."""

    name: str
    role: Role
    secret: SecretStr


def parse_tokens(text: str) -> list[AccessToken]:
    """Read `NAME ROLE TOKEN`, one on each line or between commas; lines with `#` are comments.

    Raises:
        ValueError: an entry is none. The message has no token.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = [entry.split() for line in lines for entry in line.split(",") if entry.strip()]
    return [_token(number, entry) for number, entry in enumerate(entries, 1)]


def require_distinct(tokens: list[AccessToken]) -> None:
    """Raise `ValueError` if two have one name or one token."""
    if len({token.name for token in tokens}) < len(tokens):
        raise ValueError("two tokens have one name: it could not be said who did what")
    if len({token.secret.get_secret_value() for token in tokens}) < len(tokens):
        raise ValueError("two names have one token: it could not be said who did what")


def _token(number: int, entry: list[str]) -> AccessToken:
    if len(entry) != len(("name", "role", "token")):
        raise ValueError(f"token {number} is not of the form `NAME ROLE TOKEN`")
    name, role, secret = entry
    if role not in list(Role):
        # It may be the token, in the wrong place.
        raise ValueError(f"token {number}: its second word is no role; there are {_ROLES}")
    if not name.isprintable():
        raise ValueError(f"token {number}: its name has characters that cannot be printed")
    return AccessToken(name, Role(role), SecretStr(secret))


_ROLES = ", ".join(Role)
