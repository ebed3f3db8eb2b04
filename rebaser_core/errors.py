"""Every error of what is said on the wire.

RebaserError
├── MessageError
│   ├── MalformedMessage      breaks the contract that it announces; no build can read it
│   │   └── CostlyMessage     takes too much memory for its size; it was not read
│   └── UnsupportedMessage    not for this build; the payload was not touched
│       └── NewerVersion      a newer build can read it
├── MalformedId               no id, and not the text of one
└── UnknownSubject            not a subject of ours
"""


class RebaserError(Exception):
    """Any error that Rebaser raises on purpose."""


class MessageError(RebaserError):
    """A message cannot be read here."""


class MalformedMessage(MessageError):
    """Headers or payload break the contract that they announce. No build can read it."""


class CostlyMessage(MalformedMessage):
    """The payload would take too much memory for its size. It was not read."""


class UnsupportedMessage(MessageError):
    """Judged from the headers alone: this build does not speak it."""


class NewerVersion(UnsupportedMessage):
    """The version is above the newest that this build knows; a newer build will read it."""


class MalformedId(RebaserError, ValueError):
    """An argument is no id; the message has its name, and what an id looks like."""


class UnknownSubject(RebaserError):
    """The subject does not name a change set in the way its stream's subjects do."""
