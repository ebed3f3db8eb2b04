"""All settings: read once from variables, checked before anything starts.

Where settings are shown, in `/config`, by `rebaser settings` and in logs, secrets are masked. Among
the settings are the people at the ops endpoint: their roles, and the tokens that grant them.
"""

import dataclasses
import getpass
import json
import re
from collections.abc import Iterator, Mapping
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
    PlainSerializer,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from rebaser_core.ids import Ulid, UlidText, WorkspaceId
from rebaser_core.jetstream import ConnectOptions
from rebaser_core.updates import BatchLimits
from rebaser_server.settings.redaction import redact_url, redact_values
from rebaser_server.telemetry.log_options import LogLevel


def _seconds(value: Any) -> Any:
    """Read plain seconds; pydantic itself reads ISO 8601."""
    try:
        return timedelta(seconds=float(value)) if isinstance(value, str) else value
    except (ValueError, OverflowError):
        return value


def _masked(url: str | None) -> str | None:
    return None if url is None else redact_url(url)


def _of_file(path: Path) -> Path:
    try:
        if path.is_file():
            return path
    except OSError as error:
        # Without the path, which may be the content of the file that was meant: a secret.
        raise ValueError(f"no path of a file: {error.strerror}") from None
    raise ValueError("the path does not point to a file")


FilePath = Annotated[Path, AfterValidator(_of_file)]

Duration = Annotated[timedelta, BeforeValidator(_seconds), Gt(timedelta(0))]
"""ISO 8601 (`PT5M`, `PT0.5S`) or plain seconds; more than none."""

Url = Annotated[str, PlainSerializer(_masked, when_used="json")]
"""URL whose secrets are masked as JSON, that is wherever it is shown."""

Options = Annotated[dict[str, str], PlainSerializer(redact_values, when_used="json")]
"""Options whose secrets are masked as JSON, that is wherever they are shown."""


class SettingsGroup(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Role(StrEnum):
    """Role of a person; each role includes the roles before it."""

    VIEWER = "viewer"
    """Read everything."""
    EDITOR = "editor"
    """Change the values of branches."""
    APPROVER = "approver"
    """Change heads: apply a branch, revert a commit of a head."""
    OPERATOR = "operator"
    """Replay dead letters, pause and resume, cancel updates, request checkpoints."""

    def includes(self, other: "Role") -> bool:
        """Whether this role may do what `other` may."""
        roles = list(Role)
        return roles.index(self) >= roles.index(other)


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, its role, and the name that the log gives to actions with it."""

    name: str
    role: Role
    secret: SecretStr


def parse_tokens(text: str) -> list[AccessToken]:
    """Read `NAME ROLE TOKEN`, one on each line or between commas; lines with `#` are comments.

    Raises:
        ValueError: an entry has another form. The message has no token.
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
    """TLS to NATS. With any of these, nothing is sent to a server that does not speak TLS."""

    ca: FilePath | None = None
    """PEM file: the authority of the server's certificate, if the machine does not trust it."""
    certificate: FilePath | None = None
    """PEM file: our certificate, for a server that asks for one (mutual TLS)."""
    key: FilePath | None = None
    """PEM file: our key, without a password; unless it is in the certificate's file."""
    hostname: str | None = None
    """Name in the server's certificate, where it differs from the one in the URL."""
    handshake_first: bool = False
    """Begin with TLS before the server's greeting, as the server's `handshake_first` wants."""

    @model_validator(mode="after")
    def _key_needs_certificate(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key without a certificate")
        return self


def servers_of(url: str) -> tuple[str, ...]:
    """Return the URLs of NATS servers between commas."""
    return tuple(each.strip() for each in url.split(","))


class NatsSettings(SettingsGroup):
    """Connection to NATS, and names of our streams there."""

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
    inbox_prefix: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", max_length=128)
    ] = "_INBOX"
    """Beginning of the subjects for answers: this user may subscribe below it."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Prefix of all our streams and subjects, for several Rebaser deployments on one NATS."""
    monitoring: Url | None = None
    """URLs of the monitoring ports of all NATS servers, with commas: these tell when the servers
    sync."""
    api_prefix: Annotated[str, Field(pattern=r"^[^\s.*>]+(\.[^\s.*>]+)*$")] | None = None
    """JetStream API prefix of an account that exports it, or of a domain (ADR-19)."""
    connect_timeout: Duration = timedelta(seconds=10)
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Number of replicas of each stream that the daemon creates."""
    stream_bytes: Annotated[int, Field(ge=1_000_000)] | None = None
    """Maximum bytes of each of the seven streams that the daemon creates, for a NATS account that
    asks for such a limit; NATS reserves them. A full stream refuses what is new."""
    batches_rollup: bool = True
    """Whether object stores of other makes can put into the bucket of batches, as the daemon
    creates it; if not, no client can wipe what others have put there."""

    @field_validator("url")
    @classmethod
    def _is_of_nats(cls, url: str) -> str:
        ConnectOptions(servers=servers_of(url))
        return url

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
    """Endpoint of each daemon: health, metrics and page."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port; by default 7380 or, if that is taken, any free one. A port that is set must be free."""
    token: SecretStr | None = None
    """Token that all paths but `/healthz` and `/readyz` ask for; it grants reading, and nothing
    else."""
    tokens: SecretStr | None = None
    """Tokens with names and roles: `NAME ROLE TOKEN`, one on each line or between commas."""
    tokens_file: FilePath | None = None
    """A file with such tokens."""
    local_role: Role = Role.VIEWER
    """Role of people on this machine if no token is set and `host` is loopback."""
    certificate: FilePath | None = None
    """PEM file; with it the endpoint speaks HTTPS."""
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
            ValueError: a token cannot be read, or two have one name.
        """
        try:
            file = "" if self.tokens_file is None else self.tokens_file.read_text("utf-8")
        except OSError as error:
            raise ValueError(f"tokens_file cannot be read: {error.strerror}") from error
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


_STORES: Final = ("file", "s3", "s3a", "gs", "abfs", "abfss")
_NO_STORE: Final = (
    "no store: one is a directory, s3://BUCKET/PATH, gs://BUCKET/PATH, or "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
)


class StoreSettings(SettingsGroup):
    """Place of the checkpoints; all Rebasers of a deployment share it."""

    root: Url = "rebaser-data/store"
    """A directory or a URI of an object store; or, for services alone, `nats:` for NATS."""
    options: Options = Field(default_factory=dict)
    """Options of the object store's client: region, endpoint, keys."""
    orphan_retention: Duration = timedelta(days=1)
    """Time for which batches and files that nothing refers to are kept: a batch is stored before
    its request is. One Rebaser looks for them four times in it. Replaced files of tables are kept
    for readers as long, and an hour at least."""
    published: Path | None = None
    """Folder in which the tables of heads are published as Delta tables, shared by all Rebasers and
    those who read them (default: nothing is published)."""
    sources: str = ""
    """Folders below which clients may name tables of Delta or Parquet as values, with colons
    between; all Rebasers see them by these paths (default: none)."""

    @field_validator("published", mode="before")
    @classmethod
    def _is_folder(cls, published: object) -> object:
        if isinstance(published, str) and "://" in published:
            raise ValueError("tables are published in a folder: give its path, not a URI")
        return published

    @field_validator("sources")
    @classmethod
    def _are_folders(cls, sources: str) -> str:
        for folder in filter(None, sources.split(":")):
            if not Path(folder).is_absolute():
                raise ValueError(f"{folder!r} is no path from the root: sources lie in folders")
        return sources

    @field_validator("root")
    @classmethod
    def _is_store(cls, root: str) -> str:
        scheme, is_uri, place = root.partition("://")
        is_store = bool(root)
        if is_uri and scheme.isalnum():  # else a path, which may have these characters, too
            is_store = scheme in _STORES and bool(place)
        if not is_store:
            raise ValueError(_NO_STORE)
        if ":" in root.partition("://")[2].partition("/")[0].rpartition("@")[0]:
            raise ValueError("a password in a URI: no store takes it; put keys into store.options")
        return root

    @model_validator(mode="after")
    def _store_is_no_source(self) -> Self:
        path = self.root.removeprefix("file://")
        for folder in filter(None, self.sources.split(":")):
            if "://" not in path and Path(path).resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(
                    f"the store lies below the sources {folder}, so that clients of one workspace "
                    "could read what another has: name folders without it"
                )
        return self


class HistorySettings(SettingsGroup):
    """Length of each change set's past that can be read, shown and reverted.

    The past begins at a checkpoint, at the latest at the one before the last.
    """

    retention: Duration = timedelta(days=7)
    """Time for which commits are kept, unless there are more, or more large batches than 20."""
    max_commits: Annotated[int, Field(ge=0)] = 10_000
    """Maximum number of commits of a change set that are kept."""


class ChangeSetSettings(SettingsGroup):
    deleted_retention: Duration = timedelta(days=30)
    """Time after which the data of a deleted change set is removed."""


class SparkSettings(SettingsGroup):
    """Place where dependent values updates run."""

    master: Url = "local[*]"
    """Master of Spark, or the URL of a Spark Connect server, `sc://…`."""
    state_directory: Path = Path("rebaser-data/spark")
    """Directory for what Spark writes in addition to the data; each daemon may have its own."""
    warm: bool = True
    """Start Spark with the daemon, so that the first update does not wait for it."""
    min_affected: Annotated[int, Ge(0)] | None = None
    """Number of values from which an update runs on Spark; a smaller one runs in processes beside
    the daemon. 0: all run on Spark. By default all do on a cluster, and on a local Spark those that
    would take more than some 0.25 s."""
    conf: Options = Field(default_factory=dict)
    """Further settings of Spark, which override ours: of executors, of Kubernetes, …"""


class QueueSettings(SettingsGroup):
    """Limits of waiting requests, beyond which clients are refused.

    They are stored at the server, so all Rebasers must agree. `REBASER_QUEUE={"requests": null}` is
    no limit. A refused request is not stored, and its client gets an error at once.
    """

    requests: Annotated[int, Field(ge=100)] | None = 1_000_000
    """Maximum number of waiting requests of all change sets together; a tenth of it is that of one
    change set."""


class FairnessSettings(SettingsGroup):
    """Shares of workspaces in a daemon while others wait."""

    weights: dict[UlidText, Annotated[float, Gt(0)]] = Field(default_factory=dict)
    """Factor of each workspace's share; 1 for workspaces that are not listed."""


def _ids(value: Any) -> Any:
    return value.replace(",", " ").split() if isinstance(value, str) else value


class FunctionSettings(SettingsGroup):
    """Limits of one call of a function; a value whose function exceeds them fails."""

    timeout: Duration = timedelta(seconds=60)
    memory: Annotated[int, Field(ge=0)] = 1 << 30
    """Bytes by which the process may grow during the call; 0: no limit."""
    table_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 30
    """Bytes that one query, or function of runtime `pyspark`, may write to the store as its table,
    and of a source that is copied."""
    sql_workspaces: Annotated[frozenset[WorkspaceId] | None, NoDecode, BeforeValidator(_ids)] = None
    """Ids of the workspaces whose requests may put SQL, between commas: all if not set, none if
    empty."""
    memo_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    """Bytes of results that are remembered in the store, so that a call is not repeated; each
    daemon has up to a sixteenth of that in memory. 0: nothing is remembered."""


class LineageSettings(SettingsGroup):
    """Events in the format of OpenLineage about updates of tables."""

    target: Url | None = None
    """URL that gets each event by POST, or path of a file that gets it as a line (default: no
    events)."""
    token: SecretStr | None = None
    """Token that goes with each POST, as `Authorization: Bearer`."""


class Settings(BaseSettings):
    """Defaults, overridden by `REBASER_*` variables; nested names join with `__`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    history: HistorySettings = HistorySettings()
    change_sets: ChangeSetSettings = ChangeSetSettings()
    limits: BatchLimits = BatchLimits()
    spark: SparkSettings = SparkSettings()
    queue: QueueSettings = QueueSettings()
    fairness: FairnessSettings = FairnessSettings()
    ops: OpsSettings = OpsSettings()
    lineage: LineageSettings = LineageSettings()
    instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=lambda: str(Ulid())
    )
    author: Annotated[str, Field(max_length=200)] = Field(default_factory=_login_name)
    """Author of commands, for the log of commits; the login name if not set."""
    address: str = ""
    """Address for commands that are given none."""
    log_level: LogLevel = "info"
    """Level from which lines are logged: `debug`, `info`, `warning` or `error`."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 300
    """Number of change sets that this process works on at once."""
    state_cache_bytes: Annotated[int, Field(ge=0)] = 768 << 20
    """Memory of idle change sets, in bytes, that are kept for the next request or query."""
    quiet_period: Duration = timedelta(minutes=5)
    """Silence on a change set after which its task is done."""
    ack_wait: Duration = timedelta(seconds=120)
    """Time without a progress report after which a task is redelivered; five are made in it. All
    daemons must agree."""
    reconcile_interval: Duration = timedelta(seconds=60)
    """Time between two searches of each daemon for work without a task."""
    shutdown_grace: Duration = timedelta(seconds=25)
    """Time for requests in hand to finish; keep it under the supervisor's own limit."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 2_000
    """Number of commits after which a checkpoint is written while requests go on."""
    max_attempts: Annotated[int, Field(ge=1)] = 5
    """Number of failed attempts after which a request goes to the dead letters."""
    dvu_deadline: Duration = timedelta(minutes=30)
    """Time without a newly computed value after which an update is stopped and tried again. Longer
    than `functions.timeout`, and than Spark takes to start."""
    dvu_max_attempts: Annotated[int, Field(ge=1)] = 5
    """Number of failed updates in a row after which the values not computed yet are marked
    failed."""
    functions: FunctionSettings = FunctionSettings()


def setting_names() -> Iterator[str]:
    return (variable for variable, kind in _variables(Settings, _PREFIX) if not _is_group(kind))


def _variables(group: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a group, and of the groups in it, with their types."""
    fields: dict[str, Any] = (
        {name: field.annotation for name, field in group.model_fields.items()}
        if issubclass(group, BaseModel)
        else {field.name: field.type for field in dataclasses.fields(group)}
    )
    for name, kind in fields.items():
        variable = f"{prefix}{name.upper()}"
        yield variable, kind
        if _is_group(kind):
            yield from _variables(kind, f"{variable}__")


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and (
        issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind)
    )


def service_variables(environment: Mapping[str, str]) -> list[str]:
    """Variables by which Kubernetes describes a Service to a pod, and which are no settings.

    Kubernetes sets them in each pod of a Service's namespace: those of a Service `rebaser-spark`
    begin with `REBASER_SPARK_`.
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
    objects = {
        variable
        for variable, kind in _variables(Settings, _PREFIX)
        if _is_group(kind) or get_origin(kind) is dict
    }
    return sorted(
        name for name, text in environment.items() if name.upper() in objects and not _is_json(text)
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
