"""The one line that says what went wrong, out of the hundred that Spark and Java print."""

import re
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_ABORTED: Final = re.compile(
    r"Job aborted due to stage failure: (?:.*most recent failure: .*?\): )?(?P<cause>.*)"
)
_CAUSED_BY: Final = re.compile(r"^(?:Caused by)?: (.*)", re.MULTILINE)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z_]\w*\.)+[A-Z][\w$]*: ?")
_PYTHON_ERROR: Final = re.compile(
    r"^\s*((?!java|org\.)[\w.]+(?:Error|Exception): .*)$", re.MULTILINE
)
_NOISE: Final = re.compile(r"at |\.\.\. |WARNING: |Error: (A fatal|Could not create)|\S+ WARN ")


def root_cause(error: Exception) -> str:
    """From what pyspark raises: the text of a Java or a Python exception with all its frames."""
    text = str(error).strip() or type(error).__name__
    last = text.splitlines()[-1]
    if _TRACEBACK in text and not _CAUSED_BY.search(text) and not last.lstrip().startswith("at "):
        return last
    if aborted := _ABORTED.search(text):
        cause = _JAVA_CLASS.sub("", aborted["cause"]).strip()
        python_error = _PYTHON_ERROR.search(text, aborted.end())
        return cause if cause or python_error is None else python_error[1]
    causes = _CAUSED_BY.findall(text)
    return _JAVA_CLASS.sub("", causes[-1]) if causes else text.splitlines()[0]


def last_log_line(log: str) -> str:
    """From what a JVM that ended has printed; empty if that was nothing of interest."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not _NOISE.match(line)), "")
