"""Errors of messages, ids, subjects and requests, and words for the texts of errors.

RebaserError
├── MessageError
│   ├── MalformedMessage      breaks the contract that it announces; no build can read it
│   │   └── CostlyMessage     takes too much memory for its size; it was not read
│   └── UnsupportedMessage    not for this build; the payload was not touched
│       └── NewerVersion      a newer build can read it
├── MalformedId               no id, and not the text of one
├── UnknownSubject            not a subject of ours
├── JetStreamError            between us and NATS, see `rebaser_core.jetstream`
└── ClientError               here what a Rebaser that enqueues may meet, too
    ├── NotConfirmed      the request may or may not be in the stream: ask again with the same id
    ├── QueueFull         too much waits already, nothing was stored: ask again later
    ├── TooLarge          nothing was sent: it is beyond a limit of the deployment
    ├── Unreachable       no connection in time, nothing was sent
    ├── NoSuchChangeSet   no workspace or change set of that id or name is registered
    ├── AlreadyRegistered a workspace or change set of that id is registered already
    ├── NotInWorkspace    nothing was sent: the change set is another workspace's, or none
    └── QuotaExceeded     nothing was done: the workspace has as many change sets as it may

`offer` names what is similar to an unknown name.

`many` writes a count with its noun.
"""

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
from linecache import getline
from traceback import walk_tb
from typing import Final

_CELLS: Final = 3
"""Maximum number of lines of a notebook that an error shows: of the cell, and of its functions."""


class RebaserError(Exception):
    """Base of all errors that Rebaser raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows instead of a traceback: what is wrong, and where.

        The frames of the client, of its thread and of its event loop explain nothing there.
        """
        cells = [
            (frame.f_code.co_filename, line)
            for frame, line in walk_tb(self.__traceback__)
            if frame.f_globals.get("__name__") == "__main__"
        ]
        shown = [f"  line {line}: {getline(file, line).strip()}" for file, line in cells[-_CELLS:]]
        return [*shown, f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class MessageError(RebaserError):
    """The message cannot be read here."""


class MalformedMessage(MessageError):
    """Headers or payload break the contract that they announce. No build can read them."""


class CostlyMessage(MalformedMessage):
    """The payload would take too much memory for its size. It was not read."""


class UnsupportedMessage(MessageError):
    """The message is not for this build, judged from its headers alone."""


class NewerVersion(UnsupportedMessage):
    """The version is above the newest that this build knows; a newer build will read it."""


class MalformedId(RebaserError, ValueError):
    """An argument is no id; the message has its name, and what an id looks like."""


class UnknownSubject(RebaserError):
    """The subject does not name a change set in the way its stream's subjects do."""


class ClientError(RebaserError):
    """Base of all errors that the client raises."""


class NotConfirmed(ClientError):
    """The server did not confirm the request, or its task, in time. It may be stored all the same.

    Enqueue again with the same `request_id`: it will take effect once.
    """


class QueueFull(ClientError):
    """The server refused the request, since too much is waiting already. It is not stored.

    Ask again later, with the same `request_id` or a new one: the deployment's settings limit
    how much may wait (`REBASER_QUEUE__REQUESTS`). A client that retries waits longer each time.
    """


class TooLarge(ClientError):
    """The request exceeds a limit; nothing was sent. The message says which limit, and where."""


class Unreachable(ClientError):
    """NATS was not reached in time; nothing was sent."""


class NoSuchChangeSet(ClientError):
    """The id or name is not that of a workspace or change set."""


class AlreadyRegistered(ClientError):
    """The id is registered already, with another record; nothing was done."""


class NotInWorkspace(ClientError):
    """The registry knows the change set elsewhere, or not as one; nothing was sent."""


class QuotaExceeded(ClientError):
    """The workspace has as many change sets as it may have; nothing was done."""


_COMPARED: Final = 20_000
"""Maximum number of names that are compared with an unknown one; comparing them takes a second."""
_LESS_ALIKE: Final = 0.2
"""Likeness, of at most 1, by which a name may fall behind the best and is offered, too."""


def offer(name: str, known: Iterable[str], most: int = 5) -> str:
    """Return the end of an error message: `most` similar names at most; empty if there are none."""
    text, names = name.casefold(), list(dict.fromkeys(known))
    similar = [each for each in names if text in each.casefold()][:most]
    similar = similar or _closest(name, names[:_COMPARED], most)
    return f"; there is {', '.join(map(repr, similar))}" if similar else ""


def _closest(name: str, names: Sequence[str], most: int) -> list[str]:
    """Names that are like this one, best first, without those much less alike than the best."""
    found = get_close_matches(name, names, most)
    likeness = [SequenceMatcher(None, name, each).ratio() for each in found]
    alike = zip(found, likeness, strict=True)
    return [each for each, ratio in alike if ratio >= likeness[0] - _LESS_ALIKE]


def many(count: int, noun: str, plural: str | None = None) -> str:
    """`1 value`, `2 values`, `1,000 batches`. The plural is the noun with an s if none is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def is_text(text: str) -> bool:
    """Whether it is text in UTF-8: half of a surrogate pair is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
