"""The examples in the layer's README run, and print what they say."""

import re
import textwrap

import pytest

from tests.helpers.nats_process import NatsServer
from tests.helpers.paths import ROOT
from tests.jetstream.steps import run_example

README = (ROOT / "rebaser_core" / "jetstream" / "README.md").read_text()
START, *EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TITLES = re.findall(r"^\*\*(.*?)\.?\*\*.*\n\n```python", README, re.MULTILINE)


def test_there_are_ten() -> None:
    assert len(EXAMPLES) == len(TITLES) == 10


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
async def test_an_example_prints_what_it_says(
    server: NatsServer, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on a server of its own: they make streams of one name, and where a stream is made a few
    milliseconds after one of its name was deleted, nats-server may find messages of that one.
    """
    said = re.findall(r"# → (.*)", example)

    await run_example(START + textwrap.indent(example, "    "), server.url)

    assert capsys.readouterr().out.splitlines() == said
    assert said
