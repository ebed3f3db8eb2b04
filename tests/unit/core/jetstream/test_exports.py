"""What the package exports: each name is found, and only its module is imported for it."""

import subprocess
import sys
from importlib import import_module

import pytest

from rebaser_core import jetstream

READING = ("configs", "infos", "stores", "consumers.handles", "consumers.inbox")


def test_each_exported_name_is_found_where_type_checkers_find_it() -> None:
    """And the table of names has those of `__all__`, no others."""
    for name in jetstream.__all__:
        module = import_module(f"{jetstream.__name__}.{jetstream._MODULE_OF[name]}")
        assert getattr(jetstream, name) is getattr(module, name)
    assert set(jetstream._MODULE_OF) == set(jetstream.__all__) <= set(dir(jetstream))


def test_a_name_that_is_not_exported_is_refused() -> None:
    """A misspelt name is an `AttributeError`, as it is of any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Jet'"):
        _ = jetstream.Jet


def test_publishing_imports_nothing_that_only_reading_needs() -> None:
    """A program that connects and publishes imports neither readers nor configurations."""
    code = (
        "import sys; from rebaser_core.jetstream import JetStream, JetStreamError, connected\n"
        f"unwanted = {[f'rebaser_core.jetstream.{each}' for each in READING]}\n"
        "print([name for name in [*unwanted, 'nkeys'] if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
