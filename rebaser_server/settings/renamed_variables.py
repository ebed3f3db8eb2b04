"""Former names of settings, which this release still accepts, with a warning."""

from collections.abc import MutableMapping
from typing import Final

PREFIX: Final = "REBASER_"

NEW_NAMES: Final = {
    "ATTEMPTS": "MAX_ATTEMPTS",
    "CHANGE_SETS__KEEP_DELETED": "CHANGE_SETS__DELETED_RETENTION",
    "DVU_ATTEMPTS": "DVU_MAX_ATTEMPTS",
    "DVU_BLOB_BYTES": "DVU_WORK_UNIT_BYTES",
    "FAIRNESS__TURN": "FAIRNESS__MAX_HOLD",
    "FUNCTIONS__TIME": "FUNCTIONS__TIMEOUT",
    "HISTORY__BATCHES": "HISTORY__MAX_BATCHES",
    "HISTORY__COMMITS": "HISTORY__MAX_COMMITS",
    "HISTORY__KEEP": "HISTORY__RETENTION",
    "PROGRESS_EVERY": "PROGRESS_INTERVAL",
    "QUESTIONS__ANSWER_BYTES": "QUERIES__MAX_REPLY_BYTES",
    "QUESTIONS__KEPT_BYTES": "QUERIES__CACHE_BYTES",
    "QUESTIONS__WAITING": "QUERIES__MAX_WAITING",
    "QUESTIONS__WAITING_BYTES": "QUERIES__MAX_WAITING_BYTES",
    "RECONCILE_EVERY": "RECONCILE_INTERVAL",
    "SPARK_MIN_AFFECTED": "SPARK__MIN_AFFECTED",
    "SPARK__ARCHIVES": "SPARK__CLASS_ARCHIVES",
    "SPARK__SLOTS": "SPARK__PARALLELISM",
    "SPARK__STATE": "SPARK__STATE_DIRECTORY",
    "STORE__COLLECT_EVERY": "STORE__GC_INTERVAL",
    "STORE__KEEP_REPLACED": "STORE__REPLACED_FILE_RETENTION",
    "STORE__KEEP_UNREFERRED": "STORE__ORPHAN_RETENTION",
}
"""Former name → present name, both without the prefix. The next release drops this table."""


class BothNamesGiven(ValueError):
    """A setting was given under its former name and under its present name."""


def rename_variables(environment: MutableMapping[str, str]) -> list[str]:
    """Give each variable with a former name its present one; return a warning for each.

    Raises:
        BothNamesGiven: the environment is as it was.
    """
    present_names = {name.upper() for name in environment}
    renames = {
        name: PREFIX + NEW_NAMES[short]
        for name in sorted(environment)
        if (short := name.upper().removeprefix(PREFIX)) in NEW_NAMES
        and name.upper() == PREFIX + short
    }
    for former, present in renames.items():
        if present in present_names:
            raise BothNamesGiven(f"{former} is the former name of {present}: set only {present}")
    for former, present in renames.items():
        environment[present] = environment.pop(former)
    return [
        f"{former} is now called {present}; the next release does not accept the former name"
        for former, present in renames.items()
    ]
