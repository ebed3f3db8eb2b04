"""Values that are tables: the references that people write, and the handles that only Rebasers do.

A table value is plain JSON, an object with the one key `$table`, so it is edited, forked, compared
and reverted as any other value. The rows lie in the deployment's store:

- `{"$table": {"upload": <digest>}}` refers to bytes that a client sent: one file in Parquet, by the
  BLAKE3 digest of its bytes. Clients write it.
- `{"$table": {"uri", "version", "key"}}` refers to one version of a table of Delta or Parquet in a
  folder that the operator allows. Clients write it, and a Rebaser copies the table once.
- `{"$table": {"key", "content", "schema", "rows", "bytes"}}` is the handle of a result. A client
  that sends one is corrected.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from blake3 import blake3

from rebaser_core.errors import is_text
from rebaser_core.references import KEY, REFERENCE

TABLE: Final = REFERENCE
_UPLOAD: Final = "upload"


@dataclass(frozen=True, slots=True)
class TableHandle:
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


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_SHOWN: Final = 12
"""Characters of a digest that people are shown."""


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """One version of a table that lies outside of the store, where the operator allows it."""

    path: str
    """Folder or file, from the root of the file system that all Rebasers see."""
    version: int | str
    """Version of a table of Delta; of Parquet the digest of its files, 64 hexadecimal digits."""

    @property
    def key(self) -> str:
        """Name of the directory of its copy."""
        text = json.dumps(["source", self.path, self.version])
        return blake3(text.encode(errors="surrogatepass")).hexdigest()

    def to_value(self) -> dict[str, Any]:
        return {TABLE: {"uri": self.path, "version": self.version, "key": self.key}}

    def __str__(self) -> str:
        """The form in which people write it, with a short digest."""
        return f"{self.path}@{str(self.version)[:_SHOWN]}"

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return the source that a value refers to; None for another value, or one not so made."""
        inside = _inside(value)
        if inside is None or inside.keys() != {"uri", "version", "key"}:
            return None
        try:
            source = cls.at(inside["uri"], inside["version"])
        except ValueError:
            return None
        return source if source.to_value() == value else None

    @classmethod
    def at(cls, uri: object, version: object) -> Self:
        """Return the source with that URI. Raises `ValueError` with what to write instead."""
        if isinstance(version, int) and not isinstance(version, bool) and 0 <= version < 1 << 63:
            return cls(source_path(uri), version)
        if not isinstance(version, str) or not _is_key(version):
            raise ValueError(
                "the version of a table of Delta is a number from 0 on, that of Parquet a digest "
                "of 64 hexadecimal digits: `rebaser tables pin URI` prints the newest"
            )
        return cls(source_path(uri), version)


def source_path(uri: object) -> str:
    """Return the path that the URI of a source names. Raises `ValueError`: it names none.

    The message has nothing of a URI with credentials.
    """
    if not isinstance(uri, str):
        raise ValueError("the URI of a table is a text")  # noqa: TRY004 - of the wire, as others
    path = uri
    if _SCHEME.match(uri):
        parts = urlsplit(uri)
        if parts.username is not None or parts.password is not None:
            raise ValueError("a URI with credentials: Rebasers read tables with their own rights")
        if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"a URI that begins with {parts.scheme}: is no path in a file system that Rebasers "
                "see: give one, such as /data/lake/orders, or upload the table"
            )
        if parts.query or parts.fragment:
            raise ValueError("the URI of a table has neither ? nor #: percent-encode them")
        path = unquote(parts.path)
    if not path.startswith("/"):
        raise ValueError(f"{path!r:.200} is no path from the root: begin with /, or with file:///")
    if "\0" in path or not is_text(path):
        raise ValueError("a path with characters that no file has")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise ValueError(f"{path!r:.200} has .. in it: give the path without")
    return "/" + "/".join(names)


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


def table_key(value: object) -> str | None:
    """Return the key of the table that a value is, by whichever form; None for another value."""
    handle = TableHandle.of(value)
    if handle is not None:
        return handle.key
    return reference_key(value)


def reference_key(value: object) -> str | None:
    """Return the key of a table that a client may refer to with this value; None for another."""
    source = PinnedTable.of(value)
    return upload_of(value) if source is None else source.key


def is_table(value: object) -> bool:
    """Whether a value is a table, or claims to be one."""
    return isinstance(value, dict) and TABLE in value


def _is_key(key: object) -> bool:
    """Whether it names a directory of a table, and no other."""
    return isinstance(key, str) and KEY.fullmatch(key) is not None


def _inside(value: object) -> Mapping[str, Any] | None:
    if not isinstance(value, Mapping) or value.keys() != {TABLE}:
        return None
    inside = value[TABLE]
    return inside if isinstance(inside, Mapping) else None
