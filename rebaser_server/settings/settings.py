"""Everything that can be set from outside: read once, checked before anything starts."""

import getpass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Self

from annotated_types import Ge, Gt
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from ulid import ULID

from rebaser_core.batch_limits import Limits
from rebaser_core.ids import UlidText
from rebaser_server.settings.access import NatsSettings, OpsSettings
from rebaser_server.settings.types import Duration, Group, Options, Url
from rebaser_server.telemetry.logs import Form

_PREFIX: Final = "REBASER_"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return ""


class StoreSettings(Group):
    """Where checkpoints lie; all Rebasers of a deployment share it."""

    root: Url = "rebaser-data/store"
    """A directory, or a URI of an object store."""
    options: Options = Field(default_factory=dict)
    """Passed to the object store's client: region, endpoint, keys."""
    keep_replaced: Duration = timedelta(days=1)
    """For which files that a table no longer needs stay, for whoever is reading them."""
    collect_every: Duration = timedelta(hours=6)
    """How often it is looked for batches and files that nothing refers to; by one Rebaser."""
    keep_unreferred: Duration = timedelta(days=1)
    """For which they are left: a batch is stored before its request is."""


class HistorySettings(Group):
    """How much of each change set's past stays to be read, shown and reverted.

    It begins at a checkpoint, at the latest at the one before the last.
    """

    keep: Duration = timedelta(days=7)
    """The past that is kept, unless one of these is exceeded:"""
    commits: Annotated[int, Field(ge=0)] = 10_000
    """lines of a change set's commit log,"""
    batches: Annotated[int, Field(ge=0)] = 20
    """and those of them whose batch is too large for a line and lies elsewhere."""


class ChangeSetSettings(Group):
    """What becomes of closed change sets."""

    keep_deleted: Duration = timedelta(days=30)
    """Time after which the data of one that was deleted is gone."""


class LimitsSettings(Group):
    """How large what is sent may be. Clients check it before they send, by their own `Limits`."""

    batch_updates: Annotated[int, Field(ge=1)] = Limits().batch_updates
    """Updates of one batch."""
    batch_bytes: Annotated[int, Field(ge=1)] = Limits().batch_bytes
    """Bytes of one batch that is not inline, encoded."""
    value_bytes: Annotated[int, Field(ge=1)] = Limits().value_bytes
    """Bytes of one value as JSON, sent or computed."""
    inputs: Annotated[int, Field(ge=1)] = Limits().inputs
    """Inputs of one value, all arguments together."""
    name_depth: Annotated[int, Field(ge=1)] = Limits().name_depth
    """Parts of a name, between slashes."""
    change_sets: Annotated[int, Field(ge=1)] = Limits().change_sets
    """Change sets of a workspace, the closed ones included until they are deleted."""


class SparkSettings(Group):
    """Where dependent values updates run."""

    master: str = "local[*]"
    remote: Url | None = None
    """A Spark Connect server, `sc://…`, in place of a master."""
    driver_memory: str = "1g"
    state: Path = Path("rebaser-data/spark")
    """A directory for what Spark writes beside the data; each daemon may have its own."""
    warm: bool = True
    """Start Spark with the daemon, so that the first update need not wait for it."""
    slots: Annotated[int, Field(ge=1)] | None = None
    """Values computed at a time. Of `local[…]` it is known; of a cluster it is taken to be 16."""
    conf: Options = Field(default_factory=dict)
    """More Spark settings, stronger than ours: of executors, of Kubernetes, …"""
    archives: Path | None = None
    """Where `rebaser train` leaves what Spark starts from; beside the installed packages."""


class QueueSettings(Group):
    """What may wait before clients are refused. Stored at the server: all must agree.

    `null` is no limit. A request that is refused is not stored, and its client is told at once.
    """

    change_set_requests: Annotated[int, Field(ge=10)] | None = 100_000
    """Of one change set."""
    requests: Annotated[int, Field(ge=100)] | None = 1_000_000
    """Of all of them together."""
    requests_bytes: Annotated[int, Field(ge=1_000_000)] | None = None
    """Of all of them together; NATS sets so much of its disk aside."""


class FairnessSettings(Group):
    """What a workspace and a change set may have of a daemon while others want it, too."""

    share: Annotated[float, Field(ge=1)] = 4.0
    """Slots a workspace may have for each one that it leaves free: with 4, at most 4/5 of them."""
    weights: dict[UlidText, Annotated[float, Gt(0)]] = Field(default_factory=dict)
    """By workspace: what its share is multiplied by; 1 for those not named."""
    turn: Duration = timedelta(seconds=30)
    """Work on a change set after which it goes to the end of the line if its slot is wanted."""


class QuestionSettings(Group):
    """What questions for values and outcomes may take of a daemon."""

    waiting: Annotated[int, Field(ge=1)] = 1_000
    """Questions of one kind that wait; whoever asks beyond that is told to ask again."""
    waiting_bytes: Annotated[int, Field(ge=1 << 20)] = 16 << 20
    """Their bytes."""
    answer_bytes: Annotated[int, Field(ge=1 << 20)] = 64 << 20
    """Bytes of values in one answer."""
    kept_bytes: Annotated[int, Field(ge=0)] = 512 << 20
    """Memory of the change sets that are kept for the next question."""


class FunctionSettings(Group):
    """What one call of a function may take; a value whose function takes more fails."""

    time: Duration = timedelta(seconds=60)
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
    limits: LimitsSettings = LimitsSettings()
    spark: SparkSettings = SparkSettings()
    queue: QueueSettings = QueueSettings()
    fairness: FairnessSettings = FairnessSettings()
    questions: QuestionSettings = QuestionSettings()
    ops: OpsSettings = OpsSettings()
    instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=lambda: str(ULID())
    )
    author: Annotated[str, Field(max_length=200)] = Field(default_factory=_login)
    """Whom the log of commits names for what a command asks; the login name if not set."""
    log_format: Form = "auto"
    """`json`, `pretty`, or `auto`: pretty in a terminal, JSON elsewhere."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Change sets worked on at once by this process."""
    quiet_period: Duration = timedelta(minutes=5)
    """Silence on a change set after which its task is done."""
    ack_wait: Duration = timedelta(seconds=120)
    """A task not heard of for this long is redelivered. Stored at the server: all must agree."""
    progress_every: Duration = timedelta(seconds=30)
    """How often a task in hand is reported to be in progress."""
    reconcile_every: Duration = timedelta(seconds=60)
    """How often each daemon looks for work that nobody has a task for."""
    alert_after: Duration = timedelta(minutes=10)
    """A request that waits for longer is told of as an error, by each daemon, until it is done."""
    shutdown_grace: Duration = timedelta(seconds=25)
    """Time for requests in hand to finish; keep it under the supervisor's own limit."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 2_000
    """Lines of a commit log after which a checkpoint is written while requests go on."""
    attempts: Annotated[int, Field(ge=1)] = 5
    """Failed attempts after which a request goes to the dead letters."""
    dvu_deadline: Duration = timedelta(minutes=30)
    """An update that computes no further value for this long is stopped and tried again. Longer
    than `functions.time`, and than Spark takes to start."""
    dvu_attempts: Annotated[int, Field(ge=1)] = 5
    """Failed updates in a row after which the values not computed yet are marked failed."""
    dvu_blob_bytes: Annotated[int, Field(ge=1)] = 512 * 1024 * 1024
    """Text that one evaluator is given at a time: it takes several times as much memory, in each
    slot. Values that depend on each other and need more of it together fail."""
    functions: FunctionSettings = FunctionSettings()
    spark_min_affected: Annotated[int, Ge(0)] = 0
    """Updates of fewer values are evaluated in process; 0: everything runs on Spark."""

    @model_validator(mode="after")
    def _two_reports_fit_in_ack_wait(self) -> Self:
        if 2 * self.progress_every >= self.ack_wait:
            raise ValueError("progress_every must be less than half of ack_wait")
        return self


def unknown_variables(environment: dict[str, str]) -> list[str]:
    """`REBASER_*` variables that name no setting; pydantic itself sees only the nested ones."""
    known = {f"{_PREFIX}{name}".upper() for name in Settings.model_fields}
    return sorted(
        name
        for name in environment
        if name.upper().startswith(_PREFIX) and name.upper().split("__")[0] not in known
    )
