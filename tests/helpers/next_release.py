"""This release and the next one, whose request and line of the log are of one version more.

As a program (`next_release.py this serve` or `… next serve`) it is the command of either.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rebaser_client.client import RebaserClient
from rebaser_client.requests import RequestSender
from rebaser_core.commits import Commit, CommitV1, CommitV2
from rebaser_core.messages import EnqueueUpdatesRequest, EnqueueUpdatesRequestV1
from rebaser_core.versioning import MessageType, Versioned
from rebaser_server.commands import cli
from rebaser_server.runtime import containment

LONGEST_DELAY = 0.5  # seconds; the product's own scaled down
THIS, NEXT = ((sys.executable, Path(__file__), release) for release in ("this", "next"))


class RequestOfNext(EnqueueUpdatesRequestV1):
    VERSION: ClassVar[int] = 2
    reason: str


class LineOfNext(CommitV2):
    VERSION: ClassVar[int] = 3
    written_by: str

    def to_oldest_version(self) -> "LineOfNext":
        return self


def _request_of_next(request: EnqueueUpdatesRequestV1) -> RequestOfNext:
    return RequestOfNext.model_construct(**request.__dict__, reason="upgraded")


def _line_of_next(line: CommitV2) -> LineOfNext:
    return LineOfNext.model_construct(**line.__dict__, written_by="next")


class _Next(MessageType[Any]):
    """Writes the newer version of whatever this release's code hands it."""

    def encode(self, message: Any, *content_type: str) -> tuple[dict[str, str], bytes]:
        newer = message if isinstance(message, self.current) else message.upgrade()
        return super().encode(newer, *content_type)


_NEXT_REQUEST = _Next("EnqueueUpdatesRequest", EnqueueUpdatesRequestV1, current=RequestOfNext)
_NEXT_LINE = _Next("Commit", CommitV1, CommitV2, current=LineOfNext)


class _NextSender(RequestSender):
    async def _encode(self, *args: Any) -> tuple[dict[str, str], bytes]:
        headers, payload = await super()._encode(*args)
        request = EnqueueUpdatesRequest.decode(headers, payload)
        return _NEXT_REQUEST.encode(_request_of_next(request), self.options.content_type)


class NextClient(RebaserClient):
    """A client of the next release."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sender.__class__ = _NextSender


@contextmanager
def next_lines() -> Iterator[None]:
    """Lines of either release can be read, and are written as the next one writes them."""
    with _becoming(Commit, _NEXT_LINE), _upgrading(CommitV2, _line_of_next):
        yield


@contextmanager
def _next_release() -> Iterator[None]:
    upgrading = _upgrading(EnqueueUpdatesRequestV1, _request_of_next)
    with next_lines(), _becoming(EnqueueUpdatesRequest, _NEXT_REQUEST), upgrading:
        yield


@contextmanager
def _becoming(one: MessageType[Any], other: MessageType[Any]) -> Iterator[None]:
    """`one`, which is imported everywhere by its name, is as `other`."""
    kind, inside = one.__class__, dict(one.__dict__)
    one.__class__, one.__dict__ = other.__class__, dict(other.__dict__)
    try:
        yield
    finally:
        one.__class__, one.__dict__ = kind, inside


@contextmanager
def _upgrading(shape: type[Versioned], upgrade: Any) -> Iterator[None]:
    shape.upgrade = upgrade
    try:
        yield
    finally:
        del shape.upgrade


def main() -> int:
    release, *arguments = sys.argv[1:]
    containment.LONGEST_DELAY = LONGEST_DELAY  # type: ignore[misc]
    if release == "this":
        return cli.main(arguments)
    with _next_release():
        return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
