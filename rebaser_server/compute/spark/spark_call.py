"""Queries on Spark, and calls of functions of runtime `pyspark` in a child of this process.

The child makes the frame and has Spark write it. Its answer says what was written, or what was
wrong: the child classifies errors, since it has their tracebacks.
"""

import pickle
import signal
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from rebaser_core.table_schemas import NotATable
from rebaser_server.compute.call_watchdog import CallWatchdog
from rebaser_server.compute.errors import (
    CodeDiffers,
    FunctionMissing,
    ResultTooLarge,
    RunFailed,
    describe,
    describe_call,
    evaluator_error,
    truncate,
    with_place,
)
from rebaser_server.compute.functions.runtimes import SHOWN, require_code
from rebaser_server.compute.functions.sql import SqlRefused
from rebaser_server.compute.isolation import STRAY, describe_exit
from rebaser_server.compute.json_values import NotJson, read_only
from rebaser_server.compute.local_worker import BROKEN
from rebaser_server.compute.run import Run
from rebaser_server.compute.spark import table_job
from rebaser_server.compute.spark.options import (
    is_of_spark,
    python_error_name,
    query_mistake,
    root_cause,
)
from rebaser_server.compute.tables import Query, QueryFailed, SparkCall
from rebaser_server.tables import Written
from rebaser_server.values.canonical_json import dumps, loads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rebaser_server.compute.spark.spark_executor import Ask, SparkExecutor

_WRITTEN: Final = "written"
_VALUE: Final = "value"
_MISTAKE: Final = "mistake"
_BROKEN: Final = "broken"


class Entrance(Protocol):
    """Way into a running Spark for another process. It may hold secrets, and can be pickled."""

    def enter(self) -> "SparkSession":
        """Return a session that this process has alone."""


class CallOutcome(NamedTuple):
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
        return cls(Written.decode(found) if kind == _WRITTEN else found)


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
        return _WRITTEN, found.encode()
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


_FROM_OUTSIDE: Final = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a child that another process may have ended, as the kernel does without memory."""


class SparkQueries:
    """Work of tables on Spark, as `tables.Queries`."""

    def __init__(self, spark: "SparkExecutor") -> None:
        self._spark = spark

    async def run_query(self, query: Query | SparkCall, about: str, run: Run = Run()) -> Any:
        if isinstance(query, SparkCall):
            return await self._spark.run_alone(partial(self._call, query), "call", about, run)
        return await self._spark.run_alone(partial(self._query, query), "query", about, run)

    def _query(self, query: Query, session: "SparkSession", _: "Ask") -> Any:
        try:
            return table_job.run(session, query, self._spark.slots)
        except (NotATable, NotJson, SqlRefused):
            raise
        except Exception as error:
            mistake = None if self._spark.end_reason() else query_mistake(error)
            failure = self._spark.failure(error) if mistake is None else QueryFailed(mistake)
            raise failure from error

    def _call(self, call: SparkCall, entrance: Entrance, ask: "Ask") -> Any:
        # By the child's channel: others see command lines and environments.
        found = ask(pickle.dumps(partial(answer, entrance, call, self._spark.slots)))
        return None if found is None else self._result(call, found)

    def _result(self, call: SparkCall, found: bytes | int) -> Any:
        ended = self._spark.end_reason()
        if isinstance(found, int):
            name, how = call.function[1][:SHOWN], describe_exit(found)
            if ended is not None or (found in _FROM_OUTSIDE and not call.limits.is_forked):
                raise RunFailed(f"the evaluator of function {name!r} ended: {ended or how}")
            raise QueryFailed(f"computing it ended the evaluator of function {name!r}: {how}")
        if found[:1] == BROKEN:
            reason = found[1:].decode()
            if reason == STRAY:
                raise QueryFailed(reason)
            raise evaluator_error(reason.partition(":")[0], reason)
        outcome = CallOutcome.decode(found[1:])
        if outcome.mistake is None and outcome.broken is None:
            return outcome.result
        if outcome.mistake is not None and ended is None:
            raise QueryFailed(outcome.mistake)
        raise self._spark.failure_for(*(outcome.broken or (outcome.mistake or "", None)))
