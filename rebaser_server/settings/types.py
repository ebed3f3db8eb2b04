"""What settings are made of: groups that cannot change, durations, what is shown masked."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from annotated_types import Gt
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from rebaser_server.settings.redaction import redact_url, redact_values


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
