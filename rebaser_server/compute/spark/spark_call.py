"""A call of a function of runtime `pyspark`, in a child beside the process that has the session.

The child makes the frame and has Spark write it. Its answer says what was written, or what was
wrong: the child classifies errors, since it has their tracebacks.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from rebaser_core.table_schemas import NotATable
from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.errors import (
    CodeDiffers,
    FunctionMissing,
    ResultTooLarge,
    describe,
    describe_call,
    truncate,
    with_place,
)
from rebaser_server.compute.functions.runtimes import require_code
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.spark import table_job
from rebaser_server.compute.spark.options import (
    is_of_spark,
    python_error_name,
    query_mistake,
    root_cause,
)
from rebaser_server.compute.tables import SparkCall, Written
from rebaser_server.values.canonical_json import dumps, loads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN: Final = "written"
_VALUE: Final = "value"
_MISTAKE: Final = "mistake"
_BROKEN: Final = "broken"


class Entrance(Protocol):
    """Way into a running Spark for another process. It may hold secrets, and can be pickled."""

    def enter(self) -> "SparkSession":
        """Return a session that this process has alone."""


class CallOutcome(NamedTuple):
    """Answer of the child."""

    result: Any = None
    """Contents that were `Written`, or JSON."""
    mistake: str | None = None
    """Message of the value, if the function or its frame is at fault."""
    broken: tuple[str, str | None] | None = None
    """Reason why Spark could not do it, and the class of any Python error behind that."""

    @classmethod
    def decode(cls, answer: bytes) -> "CallOutcome":
        kind, found = loads(answer.decode())
        if kind == _MISTAKE:
            return cls(mistake=found)
        if kind == _BROKEN:
            return cls(broken=(found[0], found[1]))
        return cls(Written(*found) if kind == _WRITTEN else found)


def answer(entrance: Entrance, call: SparkCall, slots: int) -> bytes:
    """Make the call in this process; return a `CallOutcome`, encoded.

    Raises:
        CodeDiffers: the function has other code here.
    """
    watchdog = CallWatchdog(replace(call.limits, seconds=0))
    try:
        outcome = _result(entrance, call, slots, watchdog)
    except CodeDiffers:
        raise
    except Exception as error:  # noqa: BLE001 - of Spark and its libraries, and there is no list
        mistake = _mistake(error, watchdog)
        if mistake is not None:
            outcome = _MISTAKE, truncate(mistake)
        else:
            cause = error.__cause__ or error if type(error) is table_job.FunctionRaised else error
            outcome = _BROKEN, (truncate(root_cause(cause)), python_error_name(cause))
    return dumps(outcome).encode()


def _result(
    entrance: Entrance, call: SparkCall, slots: int, watchdog: CallWatchdog
) -> tuple[str, Any]:
    require_code([call.function], {} if call.expected is None else {0: call.expected})
    spark = entrance.enter()
    with watchdog.limiting_memory():
        found = table_job.run(spark, call, slots)
    if isinstance(found, Written):
        return _WRITTEN, [found.fields, found.rows, found.content]
    text = dumps(read_only(found))
    if 0 < watchdog.value_bytes < len(text.encode()):
        raise ResultTooLarge(len(text.encode()), watchdog.value_bytes)
    return _VALUE, found


def _mistake(error: BaseException, watchdog: CallWatchdog) -> str | None:
    """Return the message of a value whose function, or frame, is at fault; None: neither is."""
    if isinstance(error, FunctionMissing | NotATable):
        return str(error)
    if isinstance(error, NotJson):
        return describe(error)
    if not isinstance(error, table_job.FunctionRaised):
        return watchdog.violation_message(error) or query_mistake(error)
    raised = error.__cause__ or error
    if not is_of_spark(raised):
        return watchdog.violation_message(raised) or describe_call(raised)
    mistake = query_mistake(raised)
    return None if mistake is None else with_place(mistake, raised)
