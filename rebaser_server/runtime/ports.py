"""Ports for servers that others know of before they listen, or while they are down."""

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Numbers below those that outgoing connections are given. A port of the latter may be another
process's while its server is down, or that of the server's own client, which then is connected to
itself."""


def free_port() -> int:
    """Return one that nothing listens on."""
    [port] = free_ports(1)
    return port


def free_ports(count: int) -> list[int]:
    """Return `count` that nothing listens on. Another process may be faster to take one."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = random.SystemRandom().choice(PORTS)  # `random` may have a seed
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found
