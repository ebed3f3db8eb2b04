"""A network of containers on this machine: a bridge, a namespace for each, their names by DNS."""

import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

BRIDGE: Final = "rebaser0"
_NET: Final = "10.89.77"
GATEWAY: Final = f"{_NET}.1"
"""This machine's own address there, where the name server listens."""

_A, _OK, _NO_SUCH_NAME = 1, 0x8180, 0x8183
_RECORD: Final = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04"
"""What stands before an address: of the name asked for, for five seconds."""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Place(NamedTuple):
    """Where a container is in the network."""

    address: str
    namespace: Path


@dataclass
class Network:
    """Needs root and iproute2."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """Addresses of each service, as Compose's own name server tells them."""
    _made: list[str] = field(default_factory=list)

    def join(self, service: str) -> Place:
        """A new place for a container of that service."""
        number = len(self._made) + 2
        name, address = f"rebaser-{number}", f"{_NET}.{number}"
        _ip("netns", "add", name)
        self._made.append(name)
        inside = ("-n", name)
        _ip("link", "add", f"rb{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", f"rb{number}", "master", BRIDGE, "up")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        self.names.setdefault(service, []).append(address)
        return Place(address, Path("/run/netns") / name)

    def leave(self) -> None:
        for name in self._made:
            _ip("netns", "del", name)


@contextmanager
def network() -> Iterator[Network]:
    """For as long as the body runs."""
    _ip("link", "add", BRIDGE, "type", "bridge")
    try:
        _ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        made = Network()
        try:
            with _named(made.names):
                yield made
        finally:
            made.leave()
    finally:
        _ip("link", "del", BRIDGE)


class _Names(socketserver.BaseRequestHandler):
    """Answers what a name's addresses are: no more of DNS than resolvers ask for here."""

    names: dict[str, list[str]]

    def handle(self) -> None:
        data, socket = self.request
        labels, at = [], 12
        while length := data[at]:
            labels.append(data[at + 1 : at + 1 + length].decode())
            at += 1 + length
        question, kind = data[12 : at + 5], int.from_bytes(data[at + 1 : at + 3])
        known = self.names.get(".".join(labels))
        found = known if known and kind == _A else []
        flags = _NO_SUCH_NAME if known is None else _OK
        counts = b"".join(n.to_bytes(2) for n in (flags, 1, len(found), 0, 0))
        records = (_RECORD + bytes(map(int, address.split("."))) for address in found)
        socket.sendto(data[:2] + counts + question + b"".join(records), self.client_address)


@contextmanager
def _named(names: dict[str, list[str]]) -> Iterator[None]:
    handler = type("Names", (_Names,), {"names": names})
    with socketserver.ThreadingUDPServer((GATEWAY, 53), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
