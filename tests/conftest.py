"""What holds for all tests: no bare `python`, what shares servers, and what could not be tested."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.machine_requirements import lacked

BARE = Path(__file__).with_name("bare")
TOGETHER = {
    "tests/docs/": "docs",
    "tests/spark/test_lost_spark.py": "lost Spark",
    "tests/spark/": "spark",
    "tests/chaos/": "chaos",
}
"""What runs in one process of several (`-n`): it shares a deployment, or a JVM, or is heavy."""
# However busy the machine is: by default an example that takes 200 ms fails its test.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
_SET_BY_OTHERS = re.compile("^(PYTEST_CURRENT_TEST|SPARK_.*|_RJEM_MALLOC_CONF)$|/userFiles-")


def pytest_configure() -> None:
    """Have `python` be a program that only complains, as it is missing on a bare machine."""
    os.environ["PATH"] = f"{BARE}{os.pathsep}{os.environ['PATH']}"
    # Tests fork this process, in which other tests use Spark Connect, as no process of Rebaser's
    # does. In each child gRPC would go on with descriptors that the child has given away.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"


@pytest.fixture(autouse=True)
def process_is_left_as_found() -> Iterator[None]:
    """Neither a test nor what it is the first to use changes what later tests find."""
    before = _process()
    yield
    after = _process()
    assert {name for name in before | after if before.get(name) != after.get(name)} == set()


def _process() -> dict[str, str]:
    """Its variables, working directory and paths of modules, but for what Spark sets for good."""
    found = os.environ | {"cwd": str(Path.cwd())} | dict.fromkeys(sys.path, "on sys.path")
    return {name: found[name] for name in found if not _SET_BY_OTHERS.search(name)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = next((TOGETHER[place] for place in TOGETHER if item.nodeid.startswith(place)), None)
        if group is None and item.get_closest_marker("spark"):
            group = "started Spark"
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end what this machine could not test, and how to have it tested."""
    missing = lacked(terminalreporter.stats.get("skipped", ()))
    if missing:
        terminalreporter.section("not tested on this machine")
    for reason, count in sorted(missing.items()):
        tests = "1 test" if count == 1 else f"{count} tests"
        terminalreporter.write_line(f"{tests} skipped, since it lacks {reason}")
