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
_RAISED: Final = re.compile(r"((?!java|org\.)[A-Za-z_][\w.]*)(?::|$)")
"""The last line of a traceback, the first that is not indented."""
_NOISE: Final = re.compile(r"at |\.\.\. |WARNING: |Error: (A fatal|Could not create)|\S+ WARN ")


_RPC: Final = re.compile(
    r"RPC that terminated with:\s+status = StatusCode\.(?P<status>\w+)\s+"
    r'details = "(?P<details>.*)"'
)
_REMEDIES: Final = {
    r"Invalid \w+ heap|Could not reserve|insufficient memory|OutOfMemory|SIGKILL|exceeds the max": (
        "give the machine or the container more memory, or set REBASER_SPARK__DRIVER_MEMORY"
    ),
    r"BindException|assign requested address|Service '\w+' failed after": (
        "set spark.driver.port, or spark.driver.bindAddress and spark.driver.host to an address "
        "of this machine, in REBASER_SPARK__CONF"
    ),
    r"UnknownHost|service not known|masters are unresponsive|(Invalid|parse) [Mm]aster URL": (
        "see that a master answers at REBASER_SPARK__MASTER"
    ),
}
"""Pattern of the reason why a JVM did not start → what to do about it."""


def root_cause(error: BaseException) -> str:
    """From what pyspark raises: the text of a Java or a Python exception with all its frames."""
    text = str(error).strip() or type(error).__name__
    if rpc := _RPC.search(text):
        said = rpc["details"].replace('\\"', '"').split("\\n")[0]
        return f"{said} ({rpc['status']})" if said else rpc["status"]
    last = text.splitlines()[-1]
    if _TRACEBACK in text and not _CAUSED_BY.search(text) and not last.lstrip().startswith("at "):
        return last
    if aborted := _ABORTED.search(text):
        cause = _JAVA_CLASS.sub("", aborted["cause"]).strip()
        python_error = _PYTHON_ERROR.search(text, aborted.end())
        return cause if cause or python_error is None else python_error[1]
    causes = _CAUSED_BY.findall(text)
    return _JAVA_CLASS.sub("", causes[-1]) if causes else text.splitlines()[0]


def python_error_name(error: BaseException) -> str | None:
    """The class of the error that a Python worker's code raised; None if that is not why."""
    text = str(error)
    lines = text[text.rindex(_TRACEBACK) :].splitlines() if _TRACEBACK in text else []
    matches = filter(None, map(_RAISED.match, lines[1:]))
    raised = next(matches, None)
    return None if raised is None else raised[1]


def with_remedy(cause: str) -> str:
    """Reason why a JVM did not start, and what to do about it, if that is known."""
    remedies = (remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, cause))
    return "; ".join([cause, *remedies])


def last_log_line(log: str) -> str:
    """From what a JVM that ended has printed; empty if that was nothing of interest."""
    lines = [line.strip() for line in log.splitlines()]
    return next((line for line in reversed(lines) if line and not _NOISE.match(line)), "")
