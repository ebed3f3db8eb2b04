"""The story in `examples/debian/README.md` goes as it is told there."""

import asyncio
import re
import subprocess
import sys

import pytest

from rebaser_core.ids import ChangeSet, WorkspaceId
from rebaser_server.graph_application.content import graph_of
from rebaser_server.queries.comparisons import diff
from tests.helpers.deployment import Deployment
from tests.helpers.eventually import eventually
from tests.helpers.paths import ROOT

PAGE = (ROOT / "examples/debian/README.md").read_text()


async def exposed(deployment: Deployment, change_set: ChangeSet) -> int:
    """Once everything is computed."""

    async def right() -> bool:
        nonlocal count
        state = await deployment.archive(change_set).load()
        named = [v for v in graph_of(state).values.values() if v.func_id is not None]
        count = sum(v.value is True for v in named if (v.name or "").endswith("/exposed"))
        return not state.control.dvu_due

    count = 0
    await eventually(right, within=120)
    return count


@pytest.mark.long
async def test_the_debian_story_runs_as_documented(deployment: Deployment) -> None:
    await deployment.start()
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    program = program.replace("nats://127.0.0.1:4222", deployment.nats.url)
    story = PAGE.partition("<!-- story -->")[2].partition("\n\n")[0]
    told = [tuple(map(int, row)) for row in re.findall(r"\| (\d+) \| (\d+) \|", story)]
    process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-u", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def until(what: str) -> str:
        seen = ""
        while not re.search(what, seen):
            more = process.stdout.read(1)
            assert more, seen
            seen += more
        return seen

    def go_on() -> None:
        process.stdin.write("\n")
        process.stdin.flush()

    said = await asyncio.to_thread(until, "press Enter ")
    workspace = WorkspaceId.from_str(re.search(r"workspace (\w+)", said).group(1))
    head, branch = [
        ChangeSet(workspace, record.change_set_id)
        for record in await deployment.client.workspaces.change_sets(workspace)
    ]
    seen = [(await exposed(deployment, head), await exposed(deployment, branch))]
    go_on()
    await asyncio.to_thread(until, "press Enter ")
    seen.append((await exposed(deployment, head), await exposed(deployment, branch)))
    difference = (await diff(deployment.archive(branch))).changes
    go_on()
    await asyncio.to_thread(until, "applied as head's commit [0-9]+")
    seen.append((await exposed(deployment, head), await exposed(deployment, branch)))

    assert await asyncio.to_thread(process.wait, 120) == 0
    process.stdin.close()
    process.stdout.close()
    assert seen == told
    [shown] = re.findall(r"```text\nvalue or function[^\n]*\n(.*?)```", PAGE, re.DOTALL)
    assert sorted(f"{c.name} {c.what} {c.head} {c.branch}".lower() for c in difference) == sorted(
        " ".join(line.split()) for line in shown.splitlines()
    )
