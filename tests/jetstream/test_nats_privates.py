"""What `rebaser_core.jetstream` needs of nats-py beyond its public API is there, by name.

A test that fails here after an upgrade of nats-py names the part that is missing, and the product's
modules that use it. See `fast_client.py`, `fast_parser.py`, `connection.py` and `inbox.py`.
"""

import asyncio
import inspect
import re
from typing import Any

import nats.aio.client
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from rebaser_core.jetstream.connect import SecureClient
from rebaser_core.jetstream.fast_client import FastClient, FastParser
from tests.helpers.product import MODULES

SOURCES = {path: text for path, text in MODULES.items() if "/jetstream/" in path}

CLIENT = [
    "_build_message",
    "_connect_to_server",
    "_err",
    "_error_cb",
    "_flush_pending",
    "_flush_queue",
    "_inbox_prefix",
    "_max_payload",
    "_max_pending_size",
    "_nkeys_seed_str",
    "_pending",
    "_pending_data_size",
    "_pongs",
    "_process_err",
    "_process_headers",
    "_process_info",
    "_process_msg",
    "_process_op_err",
    "_process_ping",
    "_process_pong",
    "_ps",
    "_read_loop",
    "_reconnection_task",
    "_send_ping",
    "_send_unsubscribe",
    "_server_info",
    "_setup_nkeys_connect",
    "_sid",
    "_status",
    "_subs",
    "_transport",
    "_user_credentials",
]
PARTS: dict[Any, list[str]] = {
    Client: CLIENT,
    Subscription: ["_cb", "_closed", "_id"],
    TcpTransport: ["_io_reader", "_io_writer"],
    asyncio.StreamReader: ["_buffer"],
    Parser: ["buf", "nc", "parse", "reset"],
    nats.aio.client: ["_validate_subject"],
}
"""By the class or module that has it."""

DERIVING = ("fast_client.py", "fast_parser.py", "secure_client.py")
"""Modules whose classes are derived from those of nats-py: what is on `self` may be theirs, too."""

OVERRIDDEN = [
    (overriding, name)
    for overriding in (FastClient, SecureClient, FastParser)
    for name in vars(overriding)
    if inspect.isfunction(vars(overriding)[name]) and hasattr(overriding.__mro__[-2], name)
    if not name.startswith("__")
]
"""Methods of nats-py in whose place one of ours is called."""


def instance_of(kind: Any) -> Any:
    if inspect.ismodule(kind):
        return kind
    if kind is Subscription:
        return Subscription(Client(), 1)
    return Parser(Client()) if kind is Parser else kind()


def users_of(name: str) -> list[str]:
    return [path for path, text in SOURCES.items() if re.search(rf"\b{name}\b", text)]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in PARTS.items() for name in names]
)
async def test_a_private_part_is_there(kind: Any, name: str) -> None:
    """Without it the modules that use it fail somewhere, perhaps only after a reconnect."""
    missing = f"{kind!r} has no {name}; {users_of(name)} need it"

    assert hasattr(instance_of(kind), name), missing


@pytest.mark.parametrize(("overriding", "name"), OVERRIDDEN)
def test_a_method_that_is_overridden_takes_what_it_took(overriding: type, name: str) -> None:
    """nats-py calls ours with its own arguments, so their names and order must agree."""
    overridden = next(kind for kind in overriding.__mro__[1:] if name in vars(kind))

    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (overriding, overridden))

    assert list(ours.parameters) == list(theirs.parameters), f"{overridden}.{name} has changed"


async def test_every_private_part_that_is_used_is_listed() -> None:
    """The list is complete: nothing private is used that would be missed only while running."""
    listed = {name for names in PARTS.values() for name in names}
    theirs = {name for kind in PARTS for name in dir(instance_of(kind))}
    used = set()
    for path, text in SOURCES.items():
        accessed = r"\.(_[a-z]\w*)" if path.endswith(DERIVING) else r"(?<!self)\.(_[a-z]\w*)"
        used |= set(re.findall(accessed, text))

    assert used & theirs - listed == set()


def test_every_part_that_is_listed_is_used() -> None:
    """The list only has what the product needs."""
    names = {name for kind, names in PARTS.items() if kind is not Parser for name in names}

    assert [name for name in sorted(names) if not users_of(name)] == []
