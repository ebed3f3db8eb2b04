"""The examples in the layer's README run, and print what they say."""

import re
import textwrap
from collections.abc import AsyncIterator, Iterator

import pytest

from rebaser_core.jetstream import ConnectOptions, JetStream, connected
from tests.helpers.nats_process import NatsServer, running
from tests.helpers.paths import ROOT
from tests.jetstream.steps import run_example

README = (ROOT / "rebaser_core" / "jetstream" / "README.md").read_text()
START, *EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TITLES = re.findall(r"^\*\*(.*?)\.?\*\*.*\n\n```python", README, re.MULTILINE)


def test_there_are_ten() -> None:
    assert len(EXAMPLES) == len(TITLES) == 10


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with running(NatsServer(tmp_path_factory.mktemp("nats"))) as server:
        yield server


@pytest.fixture
async def empty_server(one_server: NatsServer) -> AsyncIterator[NatsServer]:
    """The same for all examples, with no stream on it."""
    yield one_server
    async with connected(ConnectOptions(servers=(one_server.url,))) as nc:
        js = JetStream(nc)
        for name in await js.stream_names():
            await js.delete_stream(name)


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
async def test_an_example_prints_what_it_says(
    empty_server: NatsServer, example: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = re.findall(r"# → (.*)", example)

    await run_example(START + textwrap.indent(example, "    "), empty_server.url)

    assert capsys.readouterr().out.splitlines() == said
    assert said
