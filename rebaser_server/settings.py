"""Everything that can be set from outside: read once, checked before anything starts."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Self

from annotated_types import Ge, Gt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from ulid import ULID

_PREFIX: Final = "REBASER_"


def _seconds(value: Any) -> Any:
    """Plain seconds beside ISO 8601, which pydantic reads itself."""
    try:
        return timedelta(seconds=float(value)) if isinstance(value, str) else value
    except ValueError:
        return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Gt(timedelta(0))]
"""ISO 8601 (`PT5M`, `PT0.5S`) or plain seconds; more than none."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NatsSettings(_Group):
    """How to reach NATS, and under which names our streams are there."""

    url: str = "nats://127.0.0.1:4222"
    """One URL, or several with commas."""
    creds: Path | None = None
    """A credentials file."""
    user: str | None = None
    password: SecretStr | None = None
    token: SecretStr | None = None
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    """Put before every stream and subject of ours: several Rebaser deployments on one NATS."""
    api_prefix: str | None = None
    """JetStream API prefix of an account that exports it (ADR-19)."""
    domain: str | None = None
    """JetStream domain (ADR-19)."""
    connect_timeout: Duration = timedelta(seconds=10)
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Replicas of each stream, where the daemon creates it."""

    @model_validator(mode="after")
    def _one_way_to_the_api(self) -> Self:
        if self.api_prefix and self.domain:
            raise ValueError("api_prefix and domain exclude each other")
        return self


class StoreSettings(_Group):
    """Where checkpoints lie; all Rebasers of a deployment share it."""

    root: str = "rebaser-data/store"
    """A directory, or a URI of an object store."""
    options: dict[str, str] = Field(default_factory=dict)
    """Passed to the object store's client: region, endpoint, keys."""


class SparkSettings(_Group):
    """Where dependent values updates run."""

    master: str = "local[*]"
    remote: str | None = None
    """A Spark Connect server, `sc://…`, in place of a master."""
    driver_memory: str = "1g"
    state: Path = Path("rebaser-data/spark")
    """A directory for what Spark writes beside the data; each daemon may have its own."""


class Settings(BaseSettings):
    """Defaults, overridden by `REBASER_*` variables; nested names join with `__`."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    nats: NatsSettings = NatsSettings()
    store: StoreSettings = StoreSettings()
    spark: SparkSettings = SparkSettings()
    instance_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = Field(
        default_factory=lambda: str(ULID())
    )
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Change sets worked on at once by this process."""
    quiet_period: Duration = timedelta(minutes=5)
    """Silence on a change set after which its task is done."""
    ack_wait: Duration = timedelta(seconds=60)
    """A task not heard of for this long is redelivered. Stored at the server: all must agree."""
    progress_every: Duration = timedelta(seconds=10)
    """How often a task in hand is reported to be in progress."""
    reconcile_every: Duration = timedelta(seconds=60)
    """How often each daemon looks for work that nobody has a task for."""
    shutdown_grace: Duration = timedelta(seconds=25)
    """Time for requests in hand to finish; keep it under the supervisor's own limit."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 500
    """Lines of a commit log after which a checkpoint is written while requests go on."""
    attempts: Annotated[int, Field(ge=1)] = 5
    """Failed attempts after which a request goes to the dead letters."""
    dvu_deadline: Duration = timedelta(minutes=30)
    """A dependent values update that takes longer is stopped and tried again."""
    dvu_attempts: Annotated[int, Field(ge=1)] = 5
    """Failed updates in a row after which the affected values are marked failed."""
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
