"""What is known of an object in a bucket, as a message beside its chunks tells it (ADR-20)."""

import base64
import json
import re
from dataclasses import dataclass
from typing import Final

from rebaser_core.jetstream.errors import ObjectDamaged, Unsendable

CHUNK_SIZE: Final = 128 * 1024  # octets
_MAX_COUNT: Final = 2**53  # octets or chunks, more than any object has
_UNREADABLE: Final = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),  # not what is expected
    Unsendable,  # a name that is no text
)
_is_nuid: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    bucket: str
    name: str
    nuid: str
    """Names the chunks: each put has its own, so that readers never see a mixture."""
    size: int
    chunks: int
    digest: str
    deleted: bool = False

    @classmethod
    def parse(cls, payload: bytes, subject: str) -> "ObjectInfo":
        """Read the message on `subject`, which describes an object. Any client may have written it.

        Raises:
            ObjectDamaged: it describes none, or another than its subject.
        """
        try:
            meta = json.loads(payload)
            info = cls(
                meta["bucket"],
                meta["name"],
                meta["nuid"],
                meta.get("size", 0),
                meta.get("chunks", 0),
                meta.get("digest", ""),
                deleted=meta.get("deleted", False),
            )
            info._require_sound(subject)
        except _UNREADABLE as error:
            raise ObjectDamaged(f"{ascii(subject)[:200]} describes no object: {error!r}") from error
        return info

    def _require_sound(self, subject: str) -> None:
        """Raises `ValueError`. Chunks are purged by their subject: a wildcard would take all."""
        counts = (self.size, self.chunks)
        texts = (self.bucket, self.name, self.nuid, self.digest)
        if not all(isinstance(text, str) for text in texts) or type(self.deleted) is not bool:
            raise ValueError("a field is of the wrong type")
        if any(type(count) is not int or not 0 <= count <= _MAX_COUNT for count in counts):
            raise ValueError("size or chunks make no sense")
        if not _is_nuid(self.nuid):
            raise ValueError("nuid is no name of chunks")
        if not _equal_subject(subject, meta_subject(self.bucket, self.name)):
            raise ValueError("it is of another object")

    def to_json(self) -> bytes:
        shown = {
            "name": self.name,
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": self.size,
            "chunks": self.chunks,
            "mtime": "0001-01-01T00:00:00Z",  # the time of the message counts
        }
        if self.deleted:
            return json.dumps({**shown, "deleted": True}).encode()
        options = {"max_chunk_size": CHUNK_SIZE}
        return json.dumps({**shown, "digest": self.digest, "options": options}).encode()


def meta_subject(bucket: str, name: str) -> str:
    """Where the description of an object lies.

    Raises:
        Unsendable: the name is no text.
    """
    try:
        octets = name.encode()
    except UnicodeEncodeError as error:
        raise Unsendable(f"not a name of an object: {name[:100]!a}") from error
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(octets).decode()}"


def _equal_subject(one: str, other: str) -> bool:
    """Not every client pads the name."""
    return one.rstrip("=") == other.rstrip("=")
