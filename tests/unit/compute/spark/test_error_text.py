"""One line is picked out of what Spark and Java print."""

import pytest

from rebaser_server.compute.spark.options import (
    last_log_line,
    python_error_name,
    root_cause,
    with_remedy,
)

ABORTED = """\
An error occurred while calling o88.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 \
failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor \
driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:600)
Caused by: java.io.EOFException
\t... 24 more
"""
REFUSED = """\
An error occurred while calling o194.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:359)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Total size of \
serialized results of 1 tasks (3.8 MiB) is bigger than spark.driver.maxResultSize (2.0 MiB)
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2999)
"""
FROM_PYTHON = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "stage.py", line 42, in _evaluate_batches
ValueError: 7
"""
FROM_JAVA = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.IllegalStateException: stopped
\tat org.apache.spark.SparkContext.assertNotStopped(SparkContext.scala:1)
"""


NO_WORKER = """\
Job aborted due to stage failure: Task 1 in stage 0.0 failed 1 times, most recent failure: \
Lost task 1.0 in stage 0.0 (TID 1) (localhost executor driver): \
org.apache.spark.SparkException:\u0020
Error from python worker:
  Traceback (most recent call last):
    File "pyspark/daemon.py", line 129, in manager
  OSError: AF_UNIX path too long
PYTHONPATH was:
  /opt/rebaser/lib
org.apache.spark.SparkException: EOFException occurred while reading the port number
\tat org.apache.spark.errors.SparkCoreErrors$.eofException(SparkCoreErrors.scala:55)
"""


RPC = """\
<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: \
Failed to connect to remote host: connect: Connection refused (111)"
\tdebug_error_string = "UNKNOWN:Error received from peer  {grpc_status:14}"
>"""
RPC_WITHOUT_DETAILS = """\
<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.DEADLINE_EXCEEDED
\tdetails = ""
>"""
FROM_WORKER = """\
An error occurred while calling o75.getResult.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "spark_job.py", line 42, in _execute_batches
    rows = [execute(task.as_py(), store, run)]
rebaser_server.runtime.failures.StoreFailed: the bucket does not answer

\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:600)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            RPC,
            (
                "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9: "
                "Failed to connect to remote host: connect: Connection refused (111) (UNAVAILABLE)"
            ),
        ),
        (RPC_WITHOUT_DETAILS, "DEADLINE_EXCEEDED"),
        (ABORTED, "Python worker exited unexpectedly (crashed)."),
        (
            REFUSED,
            (
                "Total size of serialized results of 1 tasks (3.8 MiB) is bigger than "
                "spark.driver.maxResultSize (2.0 MiB)"
            ),
        ),
        (FROM_PYTHON, "ValueError: 7"),
        (NO_WORKER, "OSError: AF_UNIX path too long"),
        (FROM_JAVA, "stopped"),
        ("short", "short"),
        ("", "RuntimeError"),
    ],
    ids=[
        "RPC",
        "RPC without details",
        "task failed",
        "job refused",
        "Python",
        "no Python",
        "Java",
        "one line",
        "nothing",
    ],
)
def test_the_cause_of_an_error_is_found(text: str, cause: str) -> None:
    assert root_cause(RuntimeError(text)) == cause


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (
            (
                "Invalid maximum heap size: -Xmxmuch\n"
                "Error: Could not create the Java Virtual Machine.\n"
                "Error: A fatal exception has occurred. Program will exit.\n"
            ),
            "Invalid maximum heap size: -Xmxmuch",
        ),
        ("WARNING: Using incubator modules: jdk.incubator.vector\n", ""),
        ("2026-11-20T23:51:47.740 WARN Utils: it is late\nno\n\tat a.B(C.java:1)\n", "no"),
        ("", ""),
    ],
    ids=["launcher", "only noise", "trace", "nothing"],
)
def test_the_last_words_of_a_jvm(log: str, said: str) -> None:
    assert last_log_line(log) == said


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (FROM_PYTHON, "ValueError"),
        (FROM_WORKER, "rebaser_server.runtime.failures.StoreFailed"),
        (ABORTED, None),
        (NO_WORKER, None),
        (FROM_JAVA, None),
    ],
    ids=["Python", "worker", "crash", "no worker", "Java"],
)
def test_what_the_code_of_a_worker_raised_is_told_from_the_end_of_a_worker(
    text: str, name: str | None
) -> None:
    assert python_error_name(RuntimeError(text)) == name


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("Invalid maximum heap size: -Xmxmuch", "spark.driver.memory"),
        ("Insufficient driver memory: System memory 1 must be", "spark.driver.memory"),
        ("Cannot assign requested address: Service 'sparkDriver' failed after 16 retries", "port"),
        ("All masters are unresponsive! Giving up.", "REBASER_SPARK__MASTER"),
        ("java.io.IOException: No space left on device", "REBASER_SPARK__STATE_DIRECTORY"),
        ("ClassNotFoundException: org.apache.spark.deploy.SparkSubmit", "ulimit -Hn"),
        ("java.lang.InternalError: Error loading java.security file", "ulimit -Hn"),
        ("[Errno 122] Disk quota exceeded", "REBASER_SPARK__STATE_DIRECTORY"),
    ],
)
def test_the_cause_of_a_jvm_that_does_not_start_comes_with_what_to_do(
    cause: str, remedy: str
) -> None:
    assert with_remedy(cause).startswith(f"{cause}; ")
    assert remedy in with_remedy(cause)
    assert with_remedy("java.lang.Odd") == "java.lang.Odd"
