"""Large results are there whole or not at all, under their key and nowhere else."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError

from rebaser_core.messages import StoreRef
from rebaser_server.files import BatchFiles, SharedFiles


@pytest.fixture
def results(tmp_path):
    return BatchFiles(SharedFiles(str(tmp_path / "store")))


def test_what_was_stored_last_under_a_key_is_read(results):
    results.put("key", b"one")
    results.put("key", b"two")

    assert results.get("key") == b"two"


def test_a_write_that_fails_leaves_what_was_there(results):
    results.put("key", b"before")

    with pytest.raises(TypeError):
        results.put("key", object())

    assert results.get("key") == b"before"


def test_two_who_put_the_same_key_at_once_do_not_mix(results):
    """The same result from two Rebasers, one of them overtaken."""
    payloads = [bytes([n]) * 1_000_000 for n in range(4)]
    results.put("key", payloads[0])
    with ThreadPoolExecutor(4) as pool:
        puts = [pool.submit(results.put, "key", payload) for payload in payloads * 4]
        seen = {results.get("key") for _ in range(20)}
        for put in puts:
            put.result()

    assert seen <= set(payloads)


@pytest.mark.parametrize("key", [".", "..", "...", "-", "_", "unfinished", "a" * 200])
def test_a_strange_key_is_a_key_like_any_other(results, tmp_path, key):
    """All of them pass for keys on the wire; none leads out of the directory."""
    assert StoreRef(store=key)
    outside = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FileNotFoundError):
        results.get(key)

    results.put(key, b"bytes")

    assert results.get(key) == b"bytes"
    [path] = {path for path in tmp_path.rglob("*") if path.is_file()} - outside
    assert path.parent == tmp_path / "store" / "results"


@pytest.mark.parametrize("key", ["../key", "/etc/passwd", "a/b", "..\\..", "", "a\0b", "a\n"])
def test_a_key_must_not_be_a_path(results, tmp_path, key):
    """The wire refuses it, and where it does not the store does."""
    with pytest.raises(ValidationError):
        StoreRef(store=key)
    if "/" in key:
        with pytest.raises(ValueError, match="not a key"):
            results.get(key)
