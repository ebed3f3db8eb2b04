"""Ports for servers that others know of before they listen, or while they are down."""

import random
import socket
from contextlib import ExitStack, suppress
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below those from which systems take one for a connection. A client that tries such a port again
and again while nothing listens there comes to be connected to itself, and the server then finds it
in use."""


def free_port() -> int:
    """Return one that nothing listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return so many that nothing listens on. Another process may be faster to take one."""
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            port = random.SystemRandom().choice(PORTS)  # tests that run in parallel have one seed
            probe = stack.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found
