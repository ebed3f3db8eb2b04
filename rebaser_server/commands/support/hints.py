"""What a person can do about an error that ended a command."""

from typing import Final

from rebaser_client import errors as client
from rebaser_core.errors import MalformedMessage, NewerVersion
from rebaser_core.jetstream import Full, JetStreamError, NatsUnreachable, StreamNotFound, TlsFailed
from rebaser_server.commands.support.permissions import NotPermitted
from rebaser_server.commands.support.waiting import NotInTime
from rebaser_server.errors import (
    DeploymentInconsistent,
    HistoryInconsistent,
    NotRetained,
    OpsNotStarted,
    StoreNotKnown,
)

_HINTS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        NotPermitted,
        (
            "Commands need an operator's permissions: set REBASER_NATS__USER and its password, or "
            "its credentials. docs/security.md lists the permissions."
        ),
    ),
    (
        TlsFailed,
        (
            "NATS answers, and TLS fails. REBASER_NATS__TLS__CA has the authority of NATS's "
            "certificate, …__HOSTNAME the name in it where the URL has another; …__CERTIFICATE "
            "and …__KEY are ours, where NATS asks for them. A URL that begins with tls://, or "
            "REBASER_NATS__TLS__CA, wants TLS."
        ),
    ),
    (
        NatsUnreachable,
        (
            "Does NATS run there? REBASER_NATS__URL is the address; `rebaser up` runs NATS on this "
            "machine."
        ),
    ),
    (
        NotInTime,
        (
            "`rebaser log ADDRESS` shows which requests were applied, `rebaser dvu status` which "
            "updates run."
        ),
    ),
    (
        StreamNotFound,
        (
            "Streams not found: run `rebaser serve` once, it creates them. REBASER_NATS__PREFIX "
            "must be the deployment's."
        ),
    ),
    (
        Full,
        (
            "`rebaser queue` shows what waits, REBASER_QUEUE__* are the limits, "
            "`rebaser doctor` tells whether NATS has room."
        ),
    ),
    (client.ClientClosed, "Connect again, and close the client after its last use."),
    (client.ClientForked, "Connect in the forked process, too."),
    (client.WrongEventLoop, "Connect in each event loop, or use `rebaser_client.sync`."),
    (client.Unreachable, "Does a Rebaser run? `rebaser serve` starts one."),
    (
        client.NoSuchChangeSet,
        "`rebaser workspaces list` and `rebaser change-sets list WORKSPACE --all` list them.",
    ),
    (client.NoSuchValue, "`rebaser values tree ADDRESS` shows all."),
    (
        client.NotInWorkspace,
        "Nothing was sent. `rebaser change-sets list WORKSPACE` shows those of a workspace.",
    ),
    (client.AmbiguousAddress, "Give one of these, or its id."),
    (
        client.NameTaken,
        "Choose another name; closed change sets keep theirs and are not in the way.",
    ),
    (client.InvalidDraft, "Nothing was sent. docs/graph-files.md describes such files."),
    (client.MissingPackage, "Nothing was sent. `pip install` that extra, then try again."),
    (client.RequestDead, "`rebaser dead-letters list` shows it, with the reason."),
    (
        client.NotConfirmed,
        (
            "Send it again with the same --request-id: it takes effect once. "
            "`rebaser doctor` tells whether NATS takes what is written. Where a disk was full, "
            "make room and restart NATS: until then its streams take nothing."
        ),
    ),
    (
        client.QueueFull,
        "`rebaser queue` shows what waits, `rebaser doctor` whether NATS has room.",
    ),
    (
        client.OutcomeUnknown,
        "`rebaser log ADDRESS` shows which requests were applied.",
    ),
    (client.AlreadyRegistered, "Choose another id, or leave it out to get a new one."),
    (client.TooLarge, "Send it in parts, or raise REBASER_LIMITS__* for clients and daemons."),
    (client.QuotaExceeded, "Delete change sets that you do not need, or raise REBASER_LIMITS__*."),
    (client.ReadRefused, "`rebaser values` reads from the store instead."),
    (
        client.RequestIdUsed,
        "Nothing was changed. Send it again with another --request-id, or without one.",
    ),
    (
        client.RequestRefused,
        (
            "Nothing was changed. `rebaser change-sets describe ADDRESS` shows the state "
            "of the change set, `rebaser values tree ADDRESS` its values."
        ),
    ),
    (
        NotRetained,
        (
            "`rebaser log ADDRESS` shows the commits that are kept; "
            "REBASER_HISTORY__* sets for how long."
        ),
    ),
    (
        DeploymentInconsistent,
        "Nothing was touched. `rebaser doctor` says what to do; docs/backup.md has more.",
    ),
    (
        StoreNotKnown,
        (
            "Nothing was touched. Set REBASER_STORE__ROOT to what the daemons have; `rebaser "
            "settings` and /config show it there."
        ),
    ),
    (OpsNotStarted, "REBASER_OPS__ENABLED=false starts the daemon without it."),
    (HistoryInconsistent, "`rebaser doctor` names what does not fit together, and the remedy."),
    (NewerVersion, "Use a newer release: a newer one wrote this message."),
    (MalformedMessage, "docs/wire.md describes the updates."),
    (JetStreamError, "`rebaser doctor` checks NATS."),
    (
        OSError,
        "REBASER_STORE__ROOT and REBASER_STORE__OPTIONS must be those of the daemons.",
    ),
)
"""The first that fits counts. Errors of the commands themselves have the hint in their message."""


def hint_for(error: BaseException) -> str | None:
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
