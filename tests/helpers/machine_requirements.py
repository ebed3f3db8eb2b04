"""What tests need of the machine beyond Python packages, and what becomes of them without it."""

import os
import shutil
from collections.abc import Iterable
from typing import Any, Final, NoReturn

import pytest

NOTHING_SKIPPED: Final = "TEST_NOTHING_SKIPPED"
"""Variable: at 1, a test that would be skipped fails, as in CI, which installs all of it."""

_LACKING: Final = "this machine lacks "


def program(*names: str, package: str) -> str:
    """The path of the first of these programs that there is; without any, the test is skipped."""
    found = next(filter(None, map(shutil.which, names)), None)
    return found or lacking(names[0], f"apt-get install {package}")


def lacking(what: str, remedy: str) -> NoReturn:
    """Skip the test, with what to do about it; or fail it, where nothing may be skipped."""
    reason = f"{_LACKING}{what}: {remedy}"
    if os.environ.get(NOTHING_SKIPPED) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def lacked(skipped: Iterable[Any]) -> dict[str, int]:
    """Of pytest's reports of skipped tests: what was lacking, and how many tests for each."""
    found: dict[str, int] = {}
    for report in skipped:
        _, is_lacking, reason = str(report.longrepr).partition(_LACKING)
        if is_lacking:
            reason = reason.rstrip("')")
            found[reason] = found.get(reason, 0) + 1
    return found
