"""A local session is started as Spark's own scripts would start it, only sooner."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from rebaser_server.dvu.errors import SessionFailed
from rebaser_server.dvu.executor import SparkExecutor
from rebaser_server.dvu.java import VECTOR, find_java
from rebaser_server.dvu.launch import MODULES, spark_home
from rebaser_server.dvu.options import SparkOptions

pytestmark = pytest.mark.spark


def test_the_jvm_is_given_what_spark_says_it_needs(tmp_path: Path) -> None:
    """Should a new Spark need more, this says so."""
    home = find_java(tmp_path, os.environ)
    asked = subprocess.run(
        [
            home / "bin" / "java",
            *("-cp", f"{spark_home()}/jars/*"),
            "org.apache.spark.launcher.Main",
            "org.apache.spark.deploy.SparkSubmit",
            *("--conf", "spark.master=local", "pyspark-shell"),
        ],
        env={**os.environ, "SPARK_HOME": str(spark_home()), "SPARK_SCALA_VERSION": "2.13"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")

    options = asked[asked.index("-XX:+IgnoreUnrecognizedVMOptions") :]
    options = options[: options.index("org.apache.spark.deploy.SparkSubmit")]
    assert set(options) - {VECTOR} == set(MODULES)


async def test_an_executor_that_is_closed_while_it_starts_is_closed_at_once(tmp_path: Path) -> None:
    """And leaves nothing behind: a daemon may be told to stop as soon as it is up."""
    executor = SparkExecutor(SparkOptions(tmp_path / "spark"))
    starting = asyncio.create_task(executor.start())
    log = tmp_path / "spark" / "spark.log"
    while not log.exists():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)

    await executor.close()

    with pytest.raises(SessionFailed):
        await starting
    assert list((tmp_path / "spark" / "scratch").iterdir()) == []
