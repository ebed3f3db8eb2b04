"""Secrets in settings, URLs and texts, and the mask that stands for them where they are shown."""

import re
from collections.abc import Mapping
from typing import Final

from rebaser_core.jetstream.connect import without_credentials

_MASK: Final = "**********"  # pydantic's own

SECRET_NAME: Final = re.compile(r"(?i)secret|passw|token|credential|signature|\bsig\b|sas|key")
"""Pattern in the name of a secret: too many names are masked rather than one too few."""
_SECRET_PROPERTY: Final = re.compile(rf"(?i)-D[\w.-]*(?:{SECRET_NAME.pattern[4:]})")
"""Pattern of a secret property among options of Java, which makes the whole text masked."""
_PARAMETER: Final = re.compile(r"(?<=[;?&])([\w.-]*)=([^;&]*)")
_PARAMETER_IN_TEXT: Final = re.compile(r"(?<=[;?&])([\w.-]+)=([^;&\s'\"\\]+)")
_CREDENTIALS_IN_TEXT: Final = re.compile(r"(?<=://)[^/\s'\"\\]+@")
"""Pattern of user and password in a URL. The text may be JSON, in which a backslash is part of what
follows."""

_BETWEEN_URLS: Final = re.compile(r",(?=[^,@]*://)")
"""Comma before another URL; a password may have others."""


def redact_values(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of an object store or of Spark, with the values of secrets masked."""
    return {
        name: _MASK
        if SECRET_NAME.search(name) or _SECRET_PROPERTY.search(value)
        else redact_url(value)
        for name, value in options.items()
    }


def redact_url(url: str) -> str:
    """Return a URL, or several with commas, without user, password and secret parameters."""
    return ",".join(_redact(part) if _is_url(part) else part for part in _BETWEEN_URLS.split(url))


def _is_url(text: str) -> bool:
    """Whether it is a URL, or what follows the scheme of NATS's; else it is a path."""
    return "://" in text or ("@" in text and "/" not in text)


def redact_text(text: str) -> str:
    """Return a text, such as an error or a traceback, with the secrets of URLs masked."""
    return _PARAMETER_IN_TEXT.sub(_parameter, _CREDENTIALS_IN_TEXT.sub(f"{_MASK}@", text))


def _redact(url: str) -> str:
    return _PARAMETER.sub(_parameter, without_credentials(url))


def _parameter(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}={_MASK if SECRET_NAME.search(name) else value}"
