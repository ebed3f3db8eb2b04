"""A command's run: with the settings in force, from its errors to messages and exit codes.

A hint says what a person can do about an error.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_settings import SettingsError

from rebaser_client import errors as client
from rebaser_core.errors import (
    AlreadyRegistered,
    NewerVersion,
    NoSuchChangeSet,
    NotConfirmed,
    NotInWorkspace,
    QueueFull,
    QuotaExceeded,
    RebaserError,
    TooLarge,
    Unreachable,
    is_text,
    offer,
)
from rebaser_core.jetstream import Full, JetStreamError, NatsUnreachable, StreamNotFound, TlsFailed
from rebaser_core.jetstream.errors import AccountLimit, LoginRefused
from rebaser_server.commands.support.arguments import Exit, Handler, NotInTime, limited
from rebaser_server.commands.support.deployment import NotPermitted
from rebaser_server.errors import (
    DeploymentInconsistent,
    HistoryInconsistent,
    NotRetained,
    OpsNotStarted,
    StoreNotKnown,
)
from rebaser_server.runtime.data_directory import DATA, address_of
from rebaser_server.runtime.failures import EvaluatorAway
from rebaser_server.settings.settings import (
    Settings,
    malformed_objects,
    service_variables,
    setting_names,
    unknown_variables,
)
from rebaser_server.telemetry import tracing
from rebaser_server.terminal.lines import complain

_HINTS: Final[Mapping[type[BaseException], str]] = {
    NotPermitted: (
        "Commands need an operator's permissions: set REBASER_NATS__USER and its password, or its "
        "credentials."
    ),
    TlsFailed: (
        "NATS answers, and TLS fails. REBASER_NATS__TLS__CA has the authority of NATS's "
        "certificate, …__HOSTNAME the name in it where the URL has another; …__CERTIFICATE and "
        "…__KEY are ours, where NATS asks for them. A URL that begins with tls://, or "
        "REBASER_NATS__TLS__CA, wants TLS."
    ),
    LoginRefused: (
        "NATS answers, and does not take this login. REBASER_NATS__USER and …__PASSWORD, …__TOKEN, "
        "…__CREDS or …__NKEY are it, or user and password in REBASER_NATS__URL; credentials may "
        "have expired."
    ),
    NatsUnreachable: (
        "Does NATS run there? REBASER_NATS__URL is the address; `rebaser up` runs NATS on this "
        "machine."
    ),
    NotInTime: (
        "`rebaser log ADDRESS` shows which requests were applied, `rebaser dvu status` which "
        "updates run."
    ),
    StreamNotFound: (
        "Streams not found: run `rebaser serve` once, it creates them. REBASER_NATS__PREFIX must "
        "be the deployment's."
    ),
    AccountLimit: (
        "Rebaser needs 7 streams, one lasting consumer, and one more for each change set in work; "
        "REBASER_NATS__STREAM_BYTES limits the bytes of each stream. "
        "docs/deployment.md#what-a-nats-account-needs has all."
    ),
    Full: (
        "`rebaser queue` shows what waits, REBASER_QUEUE__REQUESTS is the limit, `rebaser doctor` "
        "tells whether NATS has room."
    ),
    client.ClientClosed: "Connect again, and close the client after its last use.",
    client.ClientForked: "Connect in the forked process, too.",
    client.WrongEventLoop: "Connect in each event loop, or use `rebaser_client.sync`.",
    Unreachable: "Does a Rebaser run? `rebaser serve` starts one.",
    NoSuchChangeSet: (
        "`rebaser workspaces list` and `rebaser change-sets list WORKSPACE --all` list them."
    ),
    client.NoSuchValue: "`rebaser values --tree ADDRESS` shows all.",
    NotInWorkspace: (
        "Nothing was sent. `rebaser change-sets list WORKSPACE` shows those of a workspace."
    ),
    client.AmbiguousAddress: "Give one of these, or its id.",
    client.NameTaken: (
        "Nothing was created. Go on with the one that has the name, or choose another."
    ),
    client.InvalidDraft: "Nothing was sent.",
    client.MissingPackage: "Nothing was sent. `pip install` that extra, then try again.",
    client.RequestDead: "`rebaser dead-letters` shows it, with the reason.",
    NotConfirmed: (
        "Send it again with the same --request-id: it takes effect once. `rebaser doctor` tells "
        "whether NATS takes what is written. Where a disk was full, make room and restart NATS: "
        "until then its streams take nothing."
    ),
    QueueFull: "`rebaser queue` shows what waits, `rebaser doctor` whether NATS has room.",
    client.OutcomeUnknown: "`rebaser log ADDRESS` shows which requests were applied.",
    AlreadyRegistered: "Choose another id, or leave it out to get a new one.",
    TooLarge: "Send it in parts, or raise REBASER_LIMITS__* for clients and daemons.",
    QuotaExceeded: "Delete change sets that you do not need, or raise REBASER_LIMITS__*.",
    client.ReadRefused: "`rebaser values ADDRESS` shows all values, as the store has them.",
    client.RequestIdUsed: (
        "Nothing was changed. Send it again with another --request-id, or without one."
    ),
    client.RequestRefused: (
        "Nothing was changed. `rebaser change-sets describe ADDRESS` shows the state of the change "
        "set, `rebaser values --tree ADDRESS` its values."
    ),
    NotRetained: (
        "`rebaser log ADDRESS` shows the commits that are kept; REBASER_HISTORY__* sets for how "
        "long."
    ),
    DeploymentInconsistent: (
        "Nothing was touched. REBASER_STORE__ROOT must be the store of this NATS; if one of them "
        "was lost, restore both from backups of the same time. `rebaser doctor` compares them "
        "while NATS runs. The NATS of `rebaser up` ended with it: restore its whole folder, or "
        "begin anew with `rebaser up --data OTHER`."
    ),
    StoreNotKnown: (
        "Nothing was touched. Set REBASER_STORE__ROOT to what the daemons have; `rebaser settings` "
        "and /config show it there."
    ),
    client.NoSuchService: (
        "`rebaser services` lists them; `rebaser serve --app MODULE:NAME` serves one."
    ),
    client.CallTimeout: (
        "`rebaser queue` shows what waits, `rebaser log SERVICE/KEY` the calls that are settled."
    ),
    OpsNotStarted: "REBASER_OPS__ENABLED=false starts the daemon without it.",
    HistoryInconsistent: "`rebaser doctor` names what does not fit together, and the remedy.",
    NewerVersion: "Use a newer release: a newer one wrote this message.",
    JetStreamError: (
        "`rebaser doctor` checks NATS, and NATS's own log says more: that of `rebaser up` is "
        "nats/nats.log in its directory."
    ),
    EvaluatorAway: "REBASER_SPARK__MASTER says which Spark it is; `rebaser settings` shows it.",
    OSError: (
        "Where this is the store: REBASER_STORE__ROOT and REBASER_STORE__OPTIONS must be those of "
        "the daemons."
    ),
}
"""Hints; the first that fits counts. Errors of the commands themselves have the hint in their
message."""


def hint_for(error: BaseException) -> str | None:
    return next((hint for kind, hint in _HINTS.items() if isinstance(error, kind)), None)


def execute(arguments: argparse.Namespace) -> int:
    """Run the handler of the command; return the exit code. Errors go to stderr."""
    try:
        settings = _settings()
        if arguments.action not in _OWN:
            settings = _of_this_folder(settings)
        with tracing.exported(os.environ, settings.instance_id):
            command = _handler(arguments.handler)(settings, arguments)
            limit = getattr(arguments, "timeout", None)
            return int(asyncio.run(limited(command, limit)) or Exit.OK)
    except _BadSettings as error:
        complain(*error.lines)
        return Exit.BAD_SETTINGS
    except (asyncio.CancelledError, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except (RebaserError, OSError) as error:
        complain(f"rebaser: {error}")
        if (hint := hint_for(error)) is not None:
            complain(f"  {hint}")
        if isinstance(error, NotInTime):
            return Exit.NOT_IN_TIME
        return Exit.NO_NATS if isinstance(error, NatsUnreachable) else Exit.FAILED


def _handler(given: Handler | str) -> Handler:
    if not isinstance(given, str):
        return given
    module, name = given.split(":")
    return cast("Handler", getattr(import_module(f"rebaser_server.commands.{module}"), name))


_DURATION: Final = (
    "not a duration; PT5M is five minutes, PT0.5S is half a second, 30 is thirty seconds"
)


_OWN: Final = ("serve", "up")
"""Commands that do not ask a deployment."""


def _of_this_folder(settings: Settings) -> Settings:
    """Return settings with the NATS of this folder's `rebaser up`, unless an address is set."""
    url = None if "url" in settings.nats.model_fields_set else address_of(DATA)
    if url is None:
        return settings
    return settings.model_copy(update={"nats": settings.nats.model_copy(update={"url": url})})


class _BadSettings(Exception):
    """The environment has unknown or malformed settings. No command was started."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def _settings() -> Settings:
    for name in service_variables(os.environ):
        del os.environ[name]
    unknown = unknown_variables(dict(os.environ))
    if unknown:
        raise _BadSettings(
            *(f"rebaser: no such setting: {_with_similar(name)}" for name in unknown),
            "  `rebaser settings` lists them all",
        )
    ours = {name: text for name, text in os.environ.items() if name.startswith("REBASER_")}
    foreign = [name for name, text in ours.items() if not is_text(name + text)]
    if foreign:
        raise _BadSettings(*(f"rebaser: {name!a}: not UTF-8" for name in foreign))
    try:
        return Settings()
    except ValidationError as error:
        problems = [f"  {_describe(problem)}" for problem in error.errors(include_url=False)]
        raise _BadSettings("rebaser: bad settings", *problems) from error
    except SettingsError as error:
        raise _BadSettings(
            "rebaser: bad settings",
            *(f"  {name}: an object of JSON is expected" for name in malformed_objects(os.environ)),
        ) from error


def _describe(problem: Any) -> str:
    name = f"REBASER_{'__'.join(map(str, problem['loc'])).upper()}"
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"no such setting: {_with_similar(name)}"
    if str(problem["type"]).startswith("time_delta"):
        return f"{name}: {_DURATION}"
    return f"{name}: {problem['msg'].removeprefix('Value error, ')}"


def _with_similar(name: str) -> str:
    return f"{name}{offer(name, setting_names(), 2)}"
