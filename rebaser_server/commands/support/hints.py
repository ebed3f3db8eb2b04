"""What a person can do about an error that ended a command."""

from typing import Final

from rebaser_client import errors as asking
from rebaser_core.errors import MalformedMessage, NewerVersion
from rebaser_core.jetstream import Full, JetStreamError, StreamNotFound, Unreachable
from rebaser_server.commands.support.permissions import NotPermitted
from rebaser_server.errors import HistoryBroken, NotRetained, OpsNotStarted

_REMEDIES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        NotPermitted,
        (
            "Commands are an operator's: REBASER_NATS__USER and the rest must be of one that may. "
            "docs/security.md has who may do what."
        ),
    ),
    (
        Unreachable,
        (
            "Is NATS running there? REBASER_NATS__URL says where it is looked for; "
            "`rebaser up` runs one here."
        ),
    ),
    (
        StreamNotFound,
        (
            "No Rebaser has been here yet: `rebaser serve` makes what is missing. "
            "REBASER_NATS__PREFIX must be what the deployment has."
        ),
    ),
    (Full, "NATS has no room: `rebaser queue` shows what waits, REBASER_QUEUE__* the limits."),
    (asking.Unreachable, "Is a Rebaser running? `rebaser serve` starts one."),
    (
        asking.NoSuchChangeSet,
        "`rebaser workspaces list` and `rebaser change-sets list WORKSPACE` show those there are.",
    ),
    (
        asking.NotInWorkspace,
        "Nothing was sent. `rebaser change-sets list WORKSPACE` shows those of a workspace.",
    ),
    (asking.NotStored, "Send it again with the same --request-id: it takes effect once."),
    (asking.QueueFull, "`rebaser queue` shows what waits."),
    (asking.OutcomeUnknown, "`rebaser log WORKSPACE CHANGE_SET` shows what was applied."),
    (asking.AlreadyThere, "Choose another id, or leave it out to have a new one."),
    (asking.TooLarge, "Send it in parts, or raise REBASER_LIMITS__* for clients and daemons."),
    (asking.TooMany, "Delete change sets that are done with, or raise REBASER_LIMITS__*."),
    (asking.NotReadable, "`rebaser values` reads from the store instead."),
    (
        asking.Refused,
        (
            "Nothing was done. `rebaser change-sets describe WORKSPACE CHANGE_SET` shows where it "
            "stands, `rebaser values tree WORKSPACE CHANGE_SET` what is in it."
        ),
    ),
    (
        NotRetained,
        (
            "`rebaser log WORKSPACE CHANGE_SET` shows the commits there are; "
            "REBASER_HISTORY__* says how long they are kept."
        ),
    ),
    (OpsNotStarted, "REBASER_OPS__ENABLED=false does without it."),
    (HistoryBroken, "`rebaser doctor` says what does not fit together, and what to do."),
    (NewerVersion, "Use a newer release: what is there was written by one."),
    (MalformedMessage, "docs/wire.md has what an update looks like."),
    (JetStreamError, "`rebaser doctor` looks for what is wrong with NATS."),
    (
        OSError,
        "REBASER_STORE__ROOT and REBASER_STORE__OPTIONS must be what the daemons have.",
    ),
)
"""The first that fits counts. Errors of commands themselves say it in their message."""


def remedy_for(error: BaseException) -> str | None:
    return next((remedy for kind, remedy in _REMEDIES if isinstance(error, kind)), None)
