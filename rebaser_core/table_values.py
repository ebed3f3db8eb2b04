"""Values that are tables: the references that people write, and the handles that only Rebasers do.

A table value is plain JSON, an object with the one key `$table`, so it is edited, forked, compared
and reverted as any other value. The rows lie in the deployment's store:

- `{"$table": {"upload": <digest>}}` refers to bytes that a client sent: one file in Parquet, by the
  BLAKE3 digest of its bytes. Clients write it.
- `{"$table": {"key", "content", "schema", "rows", "bytes"}}` is the handle of a result. A client
  that sends one is corrected.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

TABLE: Final = "$table"
_UPLOAD: Final = "upload"
_KEY: Final = re.compile("[0-9a-f]{64}")
_is_digest: Final = _KEY.fullmatch


@dataclass(frozen=True, slots=True)
class TableHandle:
    """The handle of a table that was computed."""

    key: str
    """Name of its directory, 64 hexadecimal digits: a digest of the code and of all inputs."""
    content: str
    """Digest of its rows, in any order: equal digests, equal rows."""
    schema: str
    """Digest of its schema."""
    rows: int
    bytes: int
    """Size of its files."""

    def to_value(self) -> dict[str, Any]:
        return {TABLE: asdict(self)}

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return the handle that a value is; None for another value."""
        inside = _inside(value)
        if inside is None or inside.keys() != set(cls.__dataclass_fields__):
            return None
        handle = cls(**inside)
        return handle if _is_key(handle.key) else None


def upload_value(digest: str) -> dict[str, Any]:
    """Return the value that refers to an uploaded file by the digest of its bytes."""
    return {TABLE: {_UPLOAD: digest}}


def upload_of(value: object) -> str | None:
    """Return the digest of the upload that a value refers to; None for another value."""
    inside = _inside(value)
    if inside is None or inside.keys() != {_UPLOAD}:
        return None
    digest = inside[_UPLOAD]
    return digest if _is_key(digest) else None


def table_keys(text: str) -> set[str]:
    """Return the keys and digests of all tables that a JSON text names, at any depth."""
    return set(_KEY.findall(text)) if TABLE in text else set()


def is_table(value: object) -> bool:
    """Whether a value is a table, or claims to be one."""
    return isinstance(value, dict) and TABLE in value


def _is_key(key: object) -> bool:
    """Whether it names a directory of a table, and no other."""
    return isinstance(key, str) and _is_digest(key) is not None


def _inside(value: object) -> Mapping[str, Any] | None:
    if not isinstance(value, Mapping) or value.keys() != {TABLE}:
        return None
    inside = value[TABLE]
    return inside if isinstance(inside, Mapping) else None
