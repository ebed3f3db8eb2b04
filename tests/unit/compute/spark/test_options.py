"""Settings of the session: what a user says is stronger."""

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebaser_server.compute.errors import SessionFailed
from rebaser_server.compute.spark.options import (
    NEWEST_SPARK,
    OLDEST_SPARK,
    ScratchDirectory,
    SparkOptions,
    join_java_options,
    require_supported,
    session_settings,
    split_java_options,
)
from tests.helpers.paths import ROOT

HERE = Path("/state")


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[4,2]", 4),
        ("local[*]", len(os.sched_getaffinity(0))),
        ("spark://somewhere:7077", 16),
    ],
)
def test_slots_follow_the_master(master: str, slots: int) -> None:
    assert SparkOptions(HERE, master=master).slots == slots


def test_a_clusters_parallelism_can_be_set() -> None:
    options = SparkOptions(HERE, master="spark://a:7077", extra={"spark.cores.max": "40"})

    assert options.slots == 40


def test_what_is_known_of_slots_is_believed() -> None:
    assert SparkOptions(HERE, master="sc://a:15002").slots == 16


@pytest.mark.parametrize("spark", ["3.5.9", "4.4.0", "5.0.0", "odd"])
def test_other_releases_of_spark_are_refused(spark: str) -> None:
    """The reason names both, and what to do."""
    with pytest.raises(SessionFailed, match=rf"Spark {spark}, .* Spark 4\.0 to 4\.3: install"):
        require_supported(spark, "installed here")


@pytest.mark.parametrize("spark", ["4.0.0", "4.1.4", "4.3.0", "4.3.1-SNAPSHOT"])
def test_a_range_of_releases_of_spark_is_taken(spark: str) -> None:
    """From the oldest to the newest, with all their patches."""
    require_supported(spark, "installed here")


def test_a_server_that_is_older_than_its_client_is_refused() -> None:
    """It lacks settings that the client asks for; of the same minor version it has them."""
    with pytest.raises(SessionFailed, match=r"install 'pyspark==4\.0\.\*' here"):
        require_supported("4.0.2", "at sc://a", client="4.3.0")
    require_supported("4.3.0", "at sc://a", client="4.3.1")
    require_supported("4.3.0", "at sc://a", client="4.0.0")


def test_the_package_asks_for_the_releases_of_spark_that_are_taken() -> None:
    """The extra and the check say the same."""
    (oldest, first), (newest, last) = OLDEST_SPARK, NEWEST_SPARK
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert (
        f"pyspark[connect]>={oldest}.{first},<{newest}.{last + 1}"
        in (project["optional-dependencies"]["server"])
    )


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[ScratchDirectory]:
    scratch = ScratchDirectory(tmp_path)
    yield scratch
    scratch.close()


def test_the_users_settings_are_stronger(scratch: ScratchDirectory) -> None:
    options = SparkOptions(HERE, extra={"spark.ui.enabled": "true"})

    assert options.settings(scratch)["spark.ui.enabled"] == "true"


def test_on_a_server_of_others_only_what_a_session_may_say_is_said() -> None:
    options = SparkOptions(HERE, master="sc://a:15002", extra={"spark.sql.session.timeZone": "UTC"})

    assert session_settings(options) == {
        "spark.sql.leafNodeDefaultParallelism": "100000",
        "spark.sql.session.timeZone": "UTC",
    }


def test_only_a_local_session_stays_on_loopback(scratch: ScratchDirectory) -> None:
    local = SparkOptions(HERE).settings(scratch)
    cluster = SparkOptions(HERE, master="spark://somewhere:7077").settings(scratch)

    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in cluster
    assert "SerialGC" not in cluster["spark.driver.extraJavaOptions"]


@given(st.lists(st.text()))
def test_options_of_a_jvm_are_split_as_they_were_joined(options: list[str]) -> None:
    assert split_java_options(join_java_options(options)) == options


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", []),
        ("  -Xmx1g\n-Da=b ", ["-Xmx1g", "-Da=b"]),
        ("-Da='b c' -Db=\"d e\"", ["-Da=b c", "-Db=d e"]),
        (r"-Da=b\ c", ["-Da=b c"]),
        (r"""-Da='\"' -Db="\"\x'" """, ['-Da=\\"', "-Db=\"x'"]),
        ("'' \"\"", ["", ""]),
    ],
)
def test_a_users_options_of_a_jvm_are_read_as_spark_reads_them(
    text: str, options: list[str]
) -> None:
    """By `CommandBuilderUtils.parseOptionString` of Spark's launcher."""
    assert split_java_options(text) == options


@pytest.mark.parametrize("text", ["-Da='b c", '-Da="b', "-Da=b\\"])
def test_options_of_a_jvm_that_end_in_the_midst_are_refused(text: str) -> None:
    with pytest.raises(SessionFailed, match="extraJavaOptions"):
        split_java_options(text)
