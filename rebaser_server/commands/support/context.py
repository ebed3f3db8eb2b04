"""The address in use: what `rebaser use` stored, for commands that are given none.

`REBASER_ADDRESS` overrides it. Addresses lie in the user's configuration directory, one for each
NATS and prefix, since a name means nothing in another deployment.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from rebaser_core.errors import RebaserError
from rebaser_server.settings.settings import Settings

VARIABLE: Final = "REBASER_ADDRESS"


class AddressNotStored(RebaserError):
    """The address in use cannot be stored; the one before it stays in use."""


class AddressInUse(NamedTuple):
    """An address, and where it comes from: a variable or a command."""

    address: str
    source: str


def context_file() -> Path:
    """The file with the addresses in use; `$XDG_CONFIG_HOME` is `~/.config` if not set."""
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    home = Path(configured) if Path(configured).is_absolute() else Path.home() / ".config"
    return home / "rebaser" / "addresses.json"


def address_in_use(settings: Settings) -> AddressInUse | None:
    """The address that commands take if they are given none."""
    if settings.address:
        return AddressInUse(settings.address, VARIABLE)
    address = _read().get(_deployment(settings))
    return AddressInUse(address, "rebaser use") if address else None


def use_address(settings: Settings, address: str | None) -> None:
    """Store the address in use for this deployment; with None, forget it.

    The file changes as a whole: a reader sees the old one or the new one.

    Raises:
        AddressNotStored: the directory does not take it.
    """
    addresses = _read()
    addresses.pop(_deployment(settings), None)
    if address is not None:
        addresses[_deployment(settings)] = address
    file = context_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=file.parent, prefix=file.name, delete=False
        ) as written:
            json.dump(addresses, written, indent=2)
        Path(written.name).replace(file)
    except OSError as error:
        raise AddressNotStored(
            f"{file} cannot be written: {error.strerror}; set {VARIABLE}, or XDG_CONFIG_HOME to "
            "a directory of yours"
        ) from error


def _read() -> dict[str, str]:
    """The stored addresses; none if there is no file that can be read."""
    try:
        addresses = json.loads(context_file().read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(addresses, dict):
        return {}
    return {k: v for k, v in addresses.items() if isinstance(v, str)}


def _deployment(settings: Settings) -> str:
    """What tells this deployment from others: its NATS and prefix, without user and password."""
    hosts = [_host(url.strip()) for url in settings.nats.url.split(",")]
    return " ".join(filter(None, (",".join(hosts), settings.nats.prefix)))


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:  # no address; what connects says so
        return url.rpartition("@")[2]
