"""Importing the client is quick: what is slow or an extra waits until it is asked for."""

import subprocess
import sys
from importlib import import_module

import pytest

import rebaser_client

HEAVY = ("pandas", "pyarrow", "ruamel", "numpy", "polars", "rebaser_server", "rich", "blockbuster")
TO_CONNECT = ("nats", "ssl", "rebaser_core.jetstream")
TO_READ = (
    *("rebaser_client.draft", "rebaser_client.plan", "rebaser_client.change_set"),
    *("rebaser_client.reader", "rebaser_client.outcomes"),
    *("rebaser_core.activities", "rebaser_core.queries"),
    *("rebaser_core.jetstream.configs", "rebaser_core.jetstream.handles"),
    *("rebaser_core.jetstream.ordered", "rebaser_core.jetstream.pull"),
)
"""What a program that connects and enqueues does not use; nor the cryptography of keys."""


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import rebaser_client", (*HEAVY, *TO_CONNECT, "pydantic", "asyncio")),
        ("from rebaser_client import RebaserError", (*HEAVY, *TO_CONNECT, "pydantic")),
        ("from rebaser_client import builtin, cel, function, python", (*HEAVY, *TO_CONNECT)),
        (
            "from rebaser_client import connect",
            (*HEAVY, *TO_READ, "nkeys", "nacl", "opentelemetry"),
        ),
        ("from rebaser_client.sync import connect", (*HEAVY, "opentelemetry")),
        ("import rebaser_client.graph_files", HEAVY),
    ],
)
def test_importing_the_client_imports_nothing_unneeded(
    statement: str, unwanted: tuple[str, ...]
) -> None:
    code = f"{statement}; import sys; print([name for name in {unwanted!r} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_each_public_name_is_found_where_type_checkers_find_it() -> None:
    for name in rebaser_client.__all__:
        found = getattr(rebaser_client, name)
        assert found is getattr(import_module(rebaser_client._MODULE_OF[name]), name)
    assert set(rebaser_client._MODULE_OF) == set(rebaser_client.__all__) <= set(dir(rebaser_client))


def test_a_name_that_is_not_public_is_refused() -> None:
    with pytest.raises(AttributeError, match="module 'rebaser_client' has no attribute 'conect'"):
        _ = rebaser_client.conect
