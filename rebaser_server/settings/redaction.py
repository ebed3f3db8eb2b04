"""Secrets in settings, URLs and texts, and the mask that stands for them where they are shown."""

import re
from collections.abc import Mapping
from typing import Final

from rebaser_core.jetstream.connect import without_credentials

_MASK: Final = "**********"  # pydantic's own

SECRET_NAME: Final = re.compile(r"(?i)secret|passw|token|credential|signature|\bsig\b|sas|key")
"""What the name of a secret has in it: too many names are masked rather than one too few."""
_SECRET_PROPERTY: Final = re.compile(rf"(?i)-D[\w.-]*(?:{SECRET_NAME.pattern[4:]})")
"""A property among options of Java's, that shows what else is in them to be masked, too."""
_PARAMETER: Final = re.compile(r"(?<=[;?&])([\w.-]*)=([^;&]*)")
_PARAMETER_IN_TEXT: Final = re.compile(r"(?<=[;?&])([\w.-]+)=([^;&\s'\"\\]+)")
_CREDENTIALS_IN_TEXT: Final = re.compile(r"(?<=://)[^/\s@'\"\\]+@")
"""The text may be JSON, in which a backslash is part of what comes next."""


def redact_values(options: Mapping[str, str]) -> dict[str, str]:
    """Options of an object store or of Spark, the value masked where the name tells of a secret."""
    return {
        name: _MASK
        if SECRET_NAME.search(name) or _SECRET_PROPERTY.search(value)
        else redact_url(value)
        for name, value in options.items()
    }


def redact_url(url: str) -> str:
    """A URL, or several with commas, without user and password and without parameters' secrets."""
    return ",".join(_redact(part) if "://" in part else part for part in url.split(","))


def redact_text(text: str) -> str:
    """A text of whatever kind, an error's or a traceback, with the secrets of URLs in it masked."""
    return _PARAMETER_IN_TEXT.sub(_parameter, _CREDENTIALS_IN_TEXT.sub(f"{_MASK}@", text))


def _redact(url: str) -> str:
    return _PARAMETER.sub(_parameter, without_credentials(url))


def _parameter(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}={_MASK if SECRET_NAME.search(name) else value}"
