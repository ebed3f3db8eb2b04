"""What the README shows works as it stands there."""

import asyncio
import re
import subprocess
import sys

from tests.helpers.deployment import Deployment
from tests.helpers.paths import ROOT

README = ROOT / "README.md"


async def test_the_example_of_the_readme_runs(deployment: Deployment) -> None:
    await deployment.start()
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    example = example.replace("nats://127.0.0.1:4222", deployment.nats.url)

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 added, 0 changed, 0 removed, 0 as they are\ngross: 119\n"
