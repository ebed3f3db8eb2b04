"""Settings shown without what must stay secret: in `/config`, by `rebaser settings`, in logs."""

import re
from collections.abc import Mapping
from typing import Final

from rebaser_core.jetstream.connection.login import without_credentials

MASK: Final = "**********"  # pydantic's own

_SECRET_NAME: Final = re.compile(r"(?i)secret|passw|token|credential|signature|sas|key")
"""What the name of a secret has in it: too many names are masked rather than one too few."""
_PARAMETER: Final = re.compile(r"(?<=[;?&])([\w.-]*)=([^;&]*)")


def redact_values(options: Mapping[str, str]) -> dict[str, str]:
    """Options of an object store or of Spark, the value masked where the name tells of a secret."""
    return {
        name: MASK if _SECRET_NAME.search(name) else redact_url(value)
        for name, value in options.items()
    }


def redact_url(url: str) -> str:
    """A URL, or several with commas, without user and password and without parameters' secrets."""
    return ",".join(_redact(part) if "://" in part else part for part in url.split(","))


def _redact(url: str) -> str:
    def parameter(found: re.Match[str]) -> str:
        name, value = found.groups()
        return f"{name}={MASK if _SECRET_NAME.search(name) else value}"

    return _PARAMETER.sub(parameter, without_credentials(url))
