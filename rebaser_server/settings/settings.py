"""Everything that can be set from outside: read once, checked before anything starts."""

import dataclasses
import getpass
import json
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_origin

from annotated_types import Ge, Gt
from pydantic import AfterValidator, BaseModel, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from ulid import ULID

from rebaser_core.batch_limits import BatchLimits
from rebaser_core.ids import UlidText
from rebaser_server.settings.access import NatsSettings, OpsSettings
from rebaser_server.settings.types import Duration, Options, SettingsGroup, Url
from rebaser_server.telemetry.log_options import LogFormat, LogLevel

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
    """Values computed at a time. Of `local[…]` it is known; of a cluster it is taken to be 16."""
    min_affected: Annotated[int, Ge(0)] = 0
    """The daemon computes updates of fewer values without Spark; 0: all run on Spark."""
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
    cache_bytes: Annotated[int, Field(ge=0)] = 512 << 20
    """Memory of the change sets that are cached for the next query."""


class FunctionSettings(SettingsGroup):
    """What one call of a function may take; a value whose function takes more fails."""

    timeout: Duration = timedelta(seconds=60)
    memory: Annotated[int, Field(ge=0)] = 1 << 30
    """Octets by which the process may grow during the call; 0: as many as there are."""


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
        default_factory=lambda: str(ULID())
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
    released_bytes: Annotated[int, Field(ge=0)] = 256 << 20
    """Memory of the change sets that made room for others and are kept for the next request."""
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
