"""A local session is started as Spark's own scripts would start it, only sooner."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.launch import (
    MODULES,
    VECTOR_MODULE,
    command,
    environment,
    find_java,
    forget_settings,
    spark_home,
)
from rebaser_server.compute.spark.options import ScratchDirectory, SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor
from rebaser_server.runtime.process import child_environment
from tests.helpers.graph_builder import eventually, is_running
from tests.helpers.machine_requirements import lacking, program

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
    assert set(options) - {VECTOR_MODULE} == set(MODULES)


@pytest.mark.parametrize("master", ["local[2]", "spark://127.0.0.1:1"])
def test_no_setting_stands_where_all_users_of_the_machine_look(
    tmp_path: Path, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command names files that only our user reads, and the environment has none of ours."""
    monkeypatch.setenv("REBASER_NATS__PASSWORD", "hush")
    extra = {
        "spark.hadoop.fs.s3a.secret.key": "hush",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=hush",
    }
    scratch = ScratchDirectory(tmp_path / "scratch")
    try:
        options = SparkOptions(tmp_path, master, extra=extra)
        said = command(options, find_java(tmp_path, os.environ), scratch)
        written = [file for file in scratch.directory.iterdir() if b"hush" in file.read_bytes()]

        assert "hush" not in str(said)
        assert "hush" not in str(child_environment())
        assert {file.stat().st_mode & 0o777 for file in written} == {0o600}
        forget_settings(scratch)
        assert not any(file.exists() for file in written)
    finally:
        scratch.close()


def test_settings_reach_the_jvm_whatever_characters_they_have(tmp_path: Path) -> None:
    """Java and Spark say how they read the files."""
    odd, java = "a b=c:d#e!f\\g\"h'i\tj ü €", find_java(tmp_path, os.environ)
    extra = {"spark.odd": odd, "spark.odd x=y:": "1"}
    extra["spark.driver.extraJavaOptions"] = """'-Dodd=a "b\\c" ü'"""
    options = SparkOptions(tmp_path, extra=extra)
    scratch = ScratchDirectory(tmp_path / "scratch")
    try:
        launched = command(options, java, scratch)
        launched[1:1] = ["-XshowSettings:properties", "-Dfile.encoding=UTF-8"]
        launched[-1:] = ["--verbose", "--class", "no.such.Main", "local:/none.jar"]
        variables = {**os.environ, **environment(options, java)}
        ran = subprocess.run(launched, env=variables, capture_output=True, check=False)
    finally:
        scratch.close()

    lines = [line.strip() for line in (ran.stdout + ran.stderr).decode().splitlines()]
    assert {f"(spark.odd,{odd})", "(spark.odd x=y:,1)", 'odd = a "b\\c" ü'} <= {*lines}


async def test_an_executor_that_is_closed_while_it_starts_is_closed_at_once(tmp_path: Path) -> None:
    """And leaves nothing behind: a daemon may be told to stop as soon as it is up."""
    executor = SparkExecutor(SparkOptions(tmp_path / "spark"))
    starting = asyncio.create_task(executor.start())
    log = tmp_path / "spark" / "spark.log"
    await eventually(log.exists)

    await executor.close()

    with pytest.raises(SessionFailed):
        await starting
    assert list((tmp_path / "spark" / "scratch").iterdir()) == []


OWNER = """
import os, sys, time
from pathlib import Path
from rebaser_server.compute.spark.launch import find_java
from rebaser_server.compute.spark.launch import CONNECTION, launch
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.options import ScratchDirectory

options = SparkOptions(Path(sys.argv[1]))
scratch = ScratchDirectory(options.state_directory / "scratch")
jvm = launch(options, find_java(options.state_directory, os.environ), scratch)
if os.fork() == 0:  # holds what the JVM listens to open, so that it does not hear of the end
    os.close(1)
    time.sleep(600)
while sys.argv[2] == "up" and not (scratch.directory / CONNECTION).exists():
    time.sleep(0.01)
print(jvm.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("when", ["starting", "up"])
async def test_a_jvm_that_does_not_hear_of_the_end_of_its_process_ends_with_it(
    tmp_path: Path, when: str
) -> None:
    """It was once seen to live on, on a busy machine; the sign that it heeds is a pipe's end."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, tmp_path / "spark", when,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert owner.stdout is not None
    jvm = int(await owner.stdout.readline())
    assert is_running(jvm)

    owner.kill()

    try:
        await eventually(lambda: not is_running(jvm))
    finally:
        os.killpg(owner.pid, signal.SIGKILL)
        await owner.wait()


STARTING = """
import asyncio, sys
from pathlib import Path
from rebaser_server.compute.spark.options import SparkOptions
from rebaser_server.compute.spark.spark_executor import SparkExecutor

async def main():
    executor = SparkExecutor(SparkOptions(Path(sys.argv[1]), master="local[1]"))
    try:
        await executor.start()
    finally:
        await executor.close()

asyncio.run(main())
"""


@pytest.mark.long
def test_spark_starts_for_a_user_that_has_no_name(tmp_path: Path) -> None:
    """As in a container that is run under any number."""
    unnamed = [program("unshare", package="util-linux"), "--user", "--map-user=54321"]
    if subprocess.run([*unnamed, "true"], check=False).returncode:
        lacking("user namespaces", "allow processes to make them")

    ran = subprocess.run(
        [*unnamed, sys.executable, "-c", STARTING, tmp_path / "spark"],
        check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
