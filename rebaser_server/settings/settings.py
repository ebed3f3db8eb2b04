"""Everything that can be set from outside: read once, checked before anything starts.

What settings are made of: groups that cannot change, durations, what is shown masked.

Roles of the people at the ops endpoint, and the tokens that grant them.

Settings of who may reach what: how this reaches NATS, and who reaches the ops endpoint.
"""

import dataclasses
import getpass
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_origin

from annotated_types import Ge, Gt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FilePath,
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from rebaser_core.ids import Ulid, UlidText
from rebaser_core.updates import BatchLimits
from rebaser_server.settings.redaction import redact_url, redact_values
from rebaser_server.telemetry.log_options import LogFormat, LogLevel


def _seconds(value: Any) -> Any:
    """Plain seconds beside ISO 8601, which pydantic reads itself."""
    try:
        return timedelta(seconds=float(value)) if isinstance(value, str) else value
    except (ValueError, OverflowError):
        return value


def _unless_none(mask: Callable[[str], str]) -> Callable[[str | None], str | None]:
    return lambda value: None if value is None else mask(value)


Duration = Annotated[timedelta, BeforeValidator(_seconds), Gt(timedelta(0))]
"""ISO 8601 (`PT5M`, `PT0.5S`) or plain seconds; more than none."""

Url = Annotated[str, PlainSerializer(_unless_none(redact_url), when_used="json")]
"""As JSON, that is wherever it is shown, without the secrets that may be in it."""

Options = Annotated[dict[str, str], PlainSerializer(redact_values, when_used="json")]
"""Likewise."""


class SettingsGroup(BaseModel):
    """Settings that belong together."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Role(StrEnum):
    """What a person may do; each role may do what the roles before it may."""

    VIEWER = "viewer"
    """Read everything."""
    EDITOR = "editor"
    """Change the values of branches."""
    APPROVER = "approver"
    """Change heads: apply a branch, revert a commit of a head."""
    OPERATOR = "operator"
    """Replay dead letters, pause and resume, cancel updates, have checkpoints written."""

    def includes(self, other: "Role") -> bool:
        """Whether this role may do what `other` may."""
        roles = list(Role)
        return roles.index(self) >= roles.index(other)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, its role, and the name that the log gives to what is done with it."""

    name: str
    role: Role
    secret: SecretStr


def parse_tokens(text: str) -> list[AccessToken]:
    """Read `NAME ROLE TOKEN`, one on each line or between commas; lines with `#` are comments.

    Raises:
        ValueError: an entry is none. The message has no token.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    entries = [entry.split() for line in lines for entry in line.split(",") if entry.strip()]
    return [_token(number, entry) for number, entry in enumerate(entries, 1)]


def _require_distinct(tokens: list[AccessToken]) -> None:
    """Raise `ValueError` if two have one name or one token."""
    if len({token.name for token in tokens}) < len(tokens):
        raise ValueError("two tokens have one name: it could not be said who did what")
    if len({token.secret.get_secret_value() for token in tokens}) < len(tokens):
        raise ValueError("two names have one token: it could not be said who did what")


def _token(number: int, entry: list[str]) -> AccessToken:
    if len(entry) != len(("name", "role", "token")):
        raise ValueError(f"token {number} is not of the form `NAME ROLE TOKEN`")
    name, role, secret = entry
    if role not in list(Role):
        # It may be the token, in the wrong place.
        raise ValueError(f"token {number}: its second word is no role; there are {_ROLES}")
    if not name.isprintable():
        raise ValueError(f"token {number}: its name has characters that cannot be printed")
    return AccessToken(name, Role(role), SecretStr(secret))


_ROLES = ", ".join(Role)


class NatsTlsSettings(SettingsGroup):
    """TLS to NATS. With any of these, nothing is said to a server that speaks no TLS."""

    ca: FilePath | None = None
    """PEM: the authority of the server's certificate, if the machine does not trust it."""
    certificate: FilePath | None = None
    """PEM: ours, for a server that asks for one (mutual TLS)."""
    key: FilePath | None = None
    """PEM, without a password; unless it is in the certificate's file."""
    hostname: str | None = None
    """The name in the server's certificate, where it is not the one in the URL."""
    handshake_first: bool = False
    """Begin with TLS before the server's greeting, as its `handshake_first` wants."""

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key without a certificate")
        return self


class NatsSettings(SettingsGroup):
    """How to reach NATS, and under which names our streams are there."""

    url: Url = "nats://127.0.0.1:4222"
    """One URL, or several with commas; `tls://` insists on TLS."""
    tls: NatsTlsSettings = NatsTlsSettings()
    creds: FilePath | None = None
    """A credentials file."""
    nkey: FilePath | None = None
    """A file with the seed of an NKey."""
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    inbox_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] = "_INBOX"
    """What answers come to begins with it: what this user may subscribe to."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Put before every stream and subject of ours: several Rebaser deployments on one NATS."""
    monitoring: Url | None = None
    """URLs of the monitoring ports of all NATS servers, with commas: what tells when they sync."""
    api_prefix: str | None = None
    """JetStream API prefix of an account that exports it (ADR-19)."""
    domain: str | None = None
    """JetStream domain (ADR-19)."""
    connect_timeout: Duration = timedelta(seconds=10)
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Replicas of each stream, where the daemon creates it."""
    batches_rollup: bool = True
    """Whether the bucket of batches is made so that object stores of other makes can put into it;
    if not, no client can wipe what others have put there."""

    @model_validator(mode="after")
    def _exclusive_api_prefix(self) -> Self:
        if self.api_prefix and self.domain:
            raise ValueError("api_prefix and domain exclude each other")
        return self

    @model_validator(mode="after")
    def _exclusive_credentials(self) -> Self:
        credentials = {
            "creds": self.creds,
            "nkey": self.nkey,
            "user": self.user,
            "token": self.token,
        }
        given = [name for name, value in credentials.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        if self.password is not None and self.user is None:
            raise ValueError("a password without a user")
        return self


class OpsSettings(SettingsGroup):
    """Where each daemon shows health, metrics and its page."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """7380, or if that is taken any free one; a port that is set must be free."""
    token: SecretStr | None = None
    """Asked for by everything but `/healthz` and `/readyz`; it may read, and nothing else."""
    tokens: SecretStr | None = None
    """Tokens with names and roles: `NAME ROLE TOKEN`, one on each line or between commas."""
    tokens_file: FilePath | None = None
    """A file with such tokens."""
    local_role: Role = Role.VIEWER
    """What people on this machine may do if no token is set and `host` is loopback."""
    certificate: FilePath | None = None
    """PEM; with it the endpoint speaks HTTPS."""
    key: FilePath | None = None

    @model_validator(mode="after")
    def _safe_endpoint(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key without a certificate: it would speak plain HTTP")
        if self.token is not None and not self.token.get_secret_value():
            raise ValueError("the token is empty")
        self.access_tokens()
        return self

    def access_tokens(self) -> list[AccessToken]:
        """All tokens, with their roles.

        Raises:
            ValueError: they cannot be read, or two have one name.
        """
        file = "" if self.tokens_file is None else self.tokens_file.read_text("utf-8")
        given = "" if self.tokens is None else self.tokens.get_secret_value()
        single = [] if self.token is None else [AccessToken("viewer", Role.VIEWER, self.token)]
        tokens = [*single, *parse_tokens(f"{given}\n{file}")]
        if (self.tokens or self.tokens_file) and tokens == single:
            raise ValueError("tokens are set, and there is none among them")
        _require_distinct(tokens)
        return tokens


_PREFIX: Final = "REBASER_"
_OF_SERVICE: Final = "_SERVICE_HOST"
_SERVICE_VARIABLE: Final = re.compile(
    rf"{_OF_SERVICE}|_SERVICE_PORT(_\w+)?|_PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return ""


def _whole_hours(duration: timedelta) -> timedelta:
    if duration % timedelta(hours=1):
        raise ValueError("tables count it in whole hours; PT1H is the least, PT24H is a day")
    return duration


class StoreSettings(SettingsGroup):
    """Where checkpoints lie; all Rebasers of a deployment share it."""

    root: Url = "rebaser-data/store"
    """A directory, or a URI of an object store."""
    options: Options = Field(default_factory=dict)
    """Passed to the object store's client: region, endpoint, keys."""
    replaced_file_retention: Annotated[Duration, AfterValidator(_whole_hours)] = timedelta(days=1)
    """How long files that a table does not need any more are kept for readers, in whole hours."""
    gc_interval: Duration = timedelta(hours=6)
    """How often one Rebaser looks for batches and files that nothing refers to."""
    orphan_retention: Duration = timedelta(days=1)
    """How long these are kept: a batch is stored before its request is."""

    @field_validator("root")
    @classmethod
    def _no_password(cls, root: str) -> str:
        if ":" in root.partition("://")[2].partition("/")[0].rpartition("@")[0]:
            raise ValueError("a password in a URI: no store takes it; put keys into store.options")
        return root


class HistorySettings(SettingsGroup):
    """How much of each change set's past stays to be read, shown and reverted.

    It begins at a checkpoint, at the latest at the one before the last.
    """

    retention: Duration = timedelta(days=7)
    """How long commits are kept, unless one of these limits is exceeded:"""
    max_commits: Annotated[int, Field(ge=0)] = 10_000
    """commits of a change set,"""
    max_batches: Annotated[int, Field(ge=0)] = 20
    """and those of them whose batch is too large for the commit log and is stored elsewhere."""


class ChangeSetSettings(SettingsGroup):
    """What becomes of closed change sets."""

    deleted_retention: Duration = timedelta(days=30)
    """Time after which the data of a deleted change set is removed."""


class SparkSettings(SettingsGroup):
    """Where dependent values updates run."""

    master: str = "local[*]"
    remote: Url | None = None
    """A Spark Connect server, `sc://…`, in place of a master."""
    driver_memory: str = "1g"
    state_directory: Path = Path("rebaser-data/spark")
    """A directory for what Spark writes beside the data; each daemon may have its own."""
    warm: bool = True
    """Start Spark with the daemon, so that the first update need not wait for it."""
    parallelism: Annotated[int, Field(ge=1)] | None = None
    """Values computed at a time; by default, as many as the master or the cluster has cores."""
    min_affected: Annotated[int, Ge(0)] | None = None
    """Updates of fewer values run in processes beside the daemon; 0: all run on Spark. By default
    all do on a cluster, and on a local Spark those that would take more than some 0.25 s."""
    conf: Options = Field(default_factory=dict)
    """More Spark settings, stronger than ours: of executors, of Kubernetes, …"""
    class_archives: Path | None = None
    """Where `rebaser train` leaves what Spark starts from; beside the installed packages."""


class QueueSettings(SettingsGroup):
    """What may wait before clients are refused. Stored at the server: all must agree.

    `null` is no limit. A refused request is not stored, and its client gets an error at once.
    """

    change_set_requests: Annotated[int, Field(ge=10)] | None = 100_000
    """Of one change set."""
    requests: Annotated[int, Field(ge=100)] | None = 1_000_000
    """Of all of them together."""
    requests_bytes: Annotated[int, Field(ge=1_000_000)] | None = None
    """Of all of them together; NATS sets so much of its disk aside."""


class FairnessSettings(SettingsGroup):
    """What a workspace and a change set may have of a daemon while others want it, too."""

    share: Annotated[float, Field(ge=1)] = 4.0
    """Slots a workspace may have for each one that it leaves free: with 4, at most 4/5 of them."""
    weights: dict[UlidText, Annotated[float, Gt(0)]] = Field(default_factory=dict)
    """By workspace: what its share is multiplied by; 1 for those not named."""
    max_hold: Duration = timedelta(seconds=30)
    """How long a change set keeps its slot while others wait for one."""


class QuerySettings(SettingsGroup):
    """What queries for values and outcomes may take of a daemon."""

    max_waiting: Annotated[int, Field(ge=1)] = 1_000
    """Queries of one kind that wait; clients of further ones get the reply to ask again."""
    max_waiting_bytes: Annotated[int, Field(ge=1 << 20)] = 16 << 20
    """Their bytes."""
    max_reply_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    """Bytes of values in one reply."""


class FunctionSettings(SettingsGroup):
    """What one call of a function may take; a value whose function takes more fails."""

    timeout: Duration = timedelta(seconds=60)
    memory: Annotated[int, Field(ge=0)] = 1 << 30
    """Octets by which the process may grow during the call; 0: as many as there are."""
    memo_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    """Bytes of results that are remembered in the store, lest the same call is made twice; each
    daemon has up to a sixteenth of that in memory. 0: nothing is remembered."""


class Settings(BaseSettings):
    """Defaults, overridden by `REBASER_*` variables; nested names join with `__`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    history: HistorySettings = HistorySettings()
    change_sets: ChangeSetSettings = ChangeSetSettings()
    limits: BatchLimits = BatchLimits()
    spark: SparkSettings = SparkSettings()
    queue: QueueSettings = QueueSettings()
    fairness: FairnessSettings = FairnessSettings()
    queries: QuerySettings = QuerySettings()
    ops: OpsSettings = OpsSettings()
    instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=lambda: str(Ulid())
    )
    author: Annotated[str, Field(max_length=200)] = Field(default_factory=_login_name)
    """Whom the log of commits names for what a command asks; the login name if not set."""
    address: str = ""
    """The change set of commands that are given none, before the one of `rebaser use`."""
    log_level: LogLevel = "info"
    """Lines of this level and above are logged: `debug`, `info`, `warning` or `error`."""
    log_format: LogFormat = "auto"
    """`json`, `pretty`, or `auto`: pretty in a terminal, JSON elsewhere."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Change sets worked on at once by this process."""
    state_cache_bytes: Annotated[int, Field(ge=0)] = 768 << 20
    """Memory of the change sets not in hand that are kept for the next request or query."""
    quiet_period: Duration = timedelta(minutes=5)
    """Silence on a change set after which its task is done."""
    ack_wait: Duration = timedelta(seconds=120)
    """A task is redelivered after so long without a progress report. All daemons must agree."""
    progress_interval: Duration = timedelta(seconds=30)
    """How often a task in hand is reported to be in progress."""
    reconcile_interval: Duration = timedelta(seconds=60)
    """How often each daemon looks for work without a task."""
    alert_after: Duration = timedelta(minutes=10)
    """Each daemon logs an error for each request that waits for longer, until it is done."""
    shutdown_grace: Duration = timedelta(seconds=25)
    """Time for requests in hand to finish; keep it under the supervisor's own limit."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 2_000
    """Commits after which a checkpoint is written while requests go on."""
    max_attempts: Annotated[int, Field(ge=1)] = 5
    """Failed attempts after which a request goes to the dead letters."""
    dvu_deadline: Duration = timedelta(minutes=30)
    """An update that computes no further value for this long is stopped and tried again. Longer
    than `functions.timeout`, and than Spark takes to start."""
    dvu_max_attempts: Annotated[int, Field(ge=1)] = 5
    """Failed updates in a row after which the values not computed yet are marked failed."""
    dvu_work_unit_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024
    """Text that one evaluator is given at a time: it takes several times as much memory, in each
    slot. Values that depend on each other and need more of it together fail."""
    functions: FunctionSettings = FunctionSettings()

    @model_validator(mode="after")
    def _two_reports_fit_in_ack_wait(self) -> Self:
        if 2 * self.progress_interval >= self.ack_wait:
            raise ValueError("progress_interval must be less than half of ack_wait")
        return self


def setting_names(group: type[Any] = Settings, prefix: str = _PREFIX) -> Iterator[str]:
    """The variable of each setting, nested ones included."""
    fields: dict[str, Any] = (
        {name: field.annotation for name, field in group.model_fields.items()}
        if issubclass(group, BaseModel)
        else {field.name: field.type for field in dataclasses.fields(group)}
    )
    for name, kind in fields.items():
        variable = f"{prefix}{name.upper()}"
        is_group = isinstance(kind, type) and (
            issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
        )
        if is_group:
            yield from setting_names(kind, f"{variable}__")
        else:
            yield variable


def service_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables by which Kubernetes tells a pod of a Service, and which are no settings.

    It sets them in each pod of a Service's namespace: of a Service `rebaser-spark` they begin
    with `REBASER_SPARK_`.
    """
    ours = set(setting_names())
    services = [
        name.removesuffix(_OF_SERVICE)
        for name in environment
        if name.startswith(_PREFIX) and name.endswith(_OF_SERVICE)
    ]
    return sorted(
        name
        for name in environment
        if name not in ours
        and any(_SERVICE_VARIABLE.fullmatch(name.removeprefix(each)) for each in services)
    )


def unknown_variables(environment: dict[str, str]) -> list[str]:
    """`REBASER_*` variables that name no setting; pydantic itself sees only the nested ones."""
    known = {f"{_PREFIX}{name}".upper() for name in Settings.model_fields}
    return sorted(
        name
        for name in environment
        if name.upper().startswith(_PREFIX) and name.upper().split("__")[0] not in known
    )


def malformed_objects(environment: Mapping[str, str]) -> list[str]:
    """Variables whose settings are objects, and whose text is no JSON."""
    objects = set()
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            objects.add(f"{_PREFIX}{name}".upper())
            objects.update(
                f"{_PREFIX}{name}__{inner}".upper()
                for inner, of_group in group.model_fields.items()
                if get_origin(of_group.annotation) is dict
            )
    return sorted(
        name for name, text in environment.items() if name.upper() in objects and not _is_json(text)
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


PREFIX: Final = "REBASER_"
