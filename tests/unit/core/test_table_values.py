"""Values that refer to tables: one form each, and no other is taken for it."""

from typing import Any

import pytest

from rebaser_core.references import keys_in
from rebaser_core.table_values import (
    PinnedTable,
    TableHandle,
    reference_key,
    source_path,
    table_key,
    upload_value,
)

PINNED = PinnedTable("/lake/orders", 17)
DIGEST = "0f" * 32


def test_a_pinned_table_is_found_in_its_value() -> None:
    """By a key that is a digest of path and version, in the text, too."""
    value = PINNED.to_value()
    of_parquet = PinnedTable("/lake/orders", DIGEST).to_value()

    assert PinnedTable.of(value) == PINNED
    assert reference_key(value) == table_key(value) == PINNED.key
    assert PINNED.key == "3c53b89e8791fbe028b5e3f244b3a7be960b57ce6de313a7ebf4eefbca9788bf"
    assert PINNED.key in keys_in(str(value))
    assert reference_key(of_parquet) != PINNED.key
    assert str(PINNED) == "/lake/orders@17"


def test_a_handle_is_no_reference() -> None:
    """It has a key, and no client may send it."""
    handle = TableHandle(DIGEST, "c", "s", 1, 2).to_value()

    assert (table_key(handle), reference_key(handle)) == (DIGEST, None)
    assert table_key(upload_value(DIGEST)) == reference_key(upload_value(DIGEST)) == DIGEST


@pytest.mark.parametrize(
    "change",
    [
        {"key": DIGEST},
        {"version": 18},
        {"version": 17.0},
        {"version": True},
        {"version": -1},
        {"version": 1 << 63},
        {"version": None},
        {"version": "17"},
        {"uri": "/lake//orders"},
        {"uri": "/lake/../orders"},
        {"uri": "file:///lake/orders"},
        {"uri": ["/lake/orders"]},
        {"more": 1},
    ],
    ids=str,
)
def test_another_form_is_no_pinned_table(change: dict[str, Any]) -> None:
    """The key has to be that of path and version, and the path in its one form."""
    value = {"$table": PINNED.to_value()["$table"] | change}

    assert PinnedTable.of(value) is None
    assert table_key(value) is None


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/lake/orders", "/lake/orders"),
        ("//lake/./orders/", "/lake/orders"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("file://localhost/lake", "/lake"),
        ("/lake/a%20b", "/lake/a%20b"),
    ],
)
def test_a_uri_names_a_path(uri: str, path: str) -> None:
    assert source_path(uri) == path


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "no path from the root"),
        ("lake", "no path from the root"),
        ("C:\\lake", "no path from the root"),
        ("/lake/../etc", r"has \.\. in it"),
        ("file:///lake/%2e%2e/etc", r"has \.\. in it"),
        ("/lake\0", "characters that no file has"),
        ("/lake\ud800", "characters that no file has"),
        ("s3://bucket/lake", "begins with s3:"),
        ("file://host/lake", "begins with file:"),
        ("s3://id:secret@bucket/lake", "a URI with credentials"),
        ("file:///lake?versionAsOf=3", "neither"),
        (17, "is a text"),
    ],
)
def test_a_uri_that_names_none_is_refused(uri: object, message: str) -> None:
    """Without repeating a secret."""
    with pytest.raises(ValueError, match=message) as refused:
        source_path(uri)

    assert "secret" not in str(refused.value)
