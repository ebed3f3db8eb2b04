"""A function that says by how many processes it was computed at once."""

from pathlib import Path

from rebaser_server.compute.cost_model import CostModel
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import StoredResult, UnitResult
from rebaser_server.compute.run import Executor
from tests.helpers.graph_builder import Builder, install

MEETS = """
import os, time
from pathlib import Path

def meets(directory, number):
    place, end, at_once = Path(directory) / str(os.getpid()), time.monotonic() + 3, 0
    place.touch()
    while time.monotonic() < end and at_once < 2:
        time.sleep(0.01)
        at_once = max(at_once, len(os.listdir(directory)))
    place.unlink()
    return at_once
"""


def install_meeting(directory: Path) -> None:
    """Install the function `meets`, which waits three seconds for another process in it."""
    install(directory, "meeting", MEETS, {"meets": "meeting:meets"})


def meetings(directory: Path, count: int, *, joined: bool) -> Builder:
    """Values of it that are independent, or `joined` by a sum over all of them."""
    build = Builder()
    build.source("directory", str(directory))
    for number in range(count):
        build.source(f"{number}", number)
        inputs = {"directory": "directory", "number": f"{number}"}
        build.dependent(f"meets {number}", "meets", inputs, "python")
    if joined:
        names = [f"meets {number}" for number in range(count)]
        build.dependent("total", "sum", {"values": names})
    return build


async def most_at_once(executor: Executor, build: Builder) -> int:
    """Run the update of values of `meets`; how many processes computed them at once, at most."""
    planned = plan(build.graph, slots=2, costs=CostModel())
    build.apply([as_result(each) for each in await executor.run(planned.units)])
    values = [value for value in build.graph.values.values() if value.id.startswith("meets")]
    return max(value.value for value in values)


def as_result(result: UnitResult | StoredResult) -> UnitResult:
    assert isinstance(result, UnitResult)
    return result
