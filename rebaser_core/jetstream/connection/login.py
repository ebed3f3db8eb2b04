"""What a connection proves itself with. Files are read anew for each attempt to connect."""

import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rebaser_core.jetstream.errors import NatsUnreachable

_CREDENTIALS: Final = re.compile(
    r"-----BEGIN NATS USER JWT-----\s+\S+\s+-+END NATS USER JWT-+\s.*"
    r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END USER NKEY SEED-+",
    re.DOTALL,
)
"""As NATS's tool nsc writes it; the group is the seed."""


@dataclass(frozen=True, slots=True)
class Login:
    """Where secrets come from; the methods return them as they are at that moment."""

    credentials: Path | None = None
    """A credentials file, as NATS's tool nsc writes it."""
    nkeys_seed: str | Path | None = field(default=None, repr=False)
    """The seed of an NKey, or the file that has it."""
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None

    def read_tls(self) -> ssl.SSLContext | None:
        """Return the context of TLS; whatever the function raises that makes it passes."""
        return self.tls() if callable(self.tls) else self.tls

    def read_credentials(self) -> str | None:
        """Return what the credentials file has.

        Raises:
            NatsUnreachable: it is no whole credentials file; nats-py would look in it for ever.
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
            NatsUnreachable: it is none; the message does not show it.
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

    with suppress(Exception):  # whatever is wrong with it shows in many ways
        nkeys.from_seed(bytearray(seed.strip().encode())).wipe()
        return seed
    raise NatsUnreachable(
        f"{where}: not a valid NKey seed: a seed begins with SU and has 58 characters"
    )


def without_credentials(url: str) -> str:
    """The URL without user and password."""
    scheme, mark, rest = url.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def requires_tls(servers: tuple[str, ...], login: Login) -> bool:
    return login.tls is not None or any(urlsplit(url).scheme in ("tls", "wss") for url in servers)
