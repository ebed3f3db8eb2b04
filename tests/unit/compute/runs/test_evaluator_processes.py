"""Evaluators and the template that they are forked from, whichever of them ends."""

import asyncio
import os
import pickle
import resource
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rebaser_server.compute.evaluator_processes import Evaluator, Template
from rebaser_server.compute.isolation import STRAY
from rebaser_server.compute.local_worker import BROKEN, DONE
from tests.helpers.graph_builder import children, eventually, is_running


@pytest.fixture
async def template() -> AsyncIterator[Template]:
    template = Template()
    yield template
    await template.close()


def process_of(template: Template) -> int:
    assert template._process is not None
    return template._process.pid


def question(count: int) -> bytes:
    return pickle.dumps(partial(bytes, count))


async def is_sound(evaluator: Evaluator) -> bool:
    return await evaluator.ask(question(3)) == DONE + bytes(3)


async def test_evaluators_end_by_themselves_and_others_go_on(template: Template) -> None:
    one, other = await template.fork(), await template.fork()
    os.kill(one.pid, signal.SIGKILL)

    with pytest.raises(EOFError):
        await one.ask(question(1))

    await eventually(lambda: one.code == -signal.SIGKILL)
    assert await is_sound(other)
    await asyncio.gather(one.end(), other.end())
    assert other.code == -signal.SIGKILL


async def test_an_evaluator_that_exits_tells_its_code(template: Template) -> None:
    evaluator = await template.fork()

    with pytest.raises(EOFError):
        await evaluator.ask(pickle.dumps(partial(os._exit, 7)))

    await eventually(lambda: evaluator.code == 7)
    await evaluator.end()


async def test_what_is_written_into_its_channel_answers_nothing(template: Template) -> None:
    """As by a function of runtime `pyspark`, which is called in the evaluator itself."""
    evaluator = await template.fork()
    code = """[
        os.write(int(fd), bytes(8) + (1).to_bytes(8) + bytes(1))
        for os in [__import__("os")]
        for fd in os.listdir("/proc/self/fd")
        if "socket" in os.path.realpath(f"/proc/self/fd/{fd}")
    ]"""

    answer = await evaluator.ask(pickle.dumps(partial(eval, code)))

    assert answer == BROKEN + STRAY.encode()
    await evaluator.end()


async def test_a_machine_without_memory_ends_evaluators_first(template: Template) -> None:
    """And what they fork for functions: a score is inherited."""
    evaluator = await template.fork()

    score = pickle.dumps(partial(Path.read_bytes, Path("/proc/self/oom_score_adj")))

    assert await evaluator.ask(score) == DONE + b"1000\n"
    await evaluator.end()


async def test_a_template_that_ends_takes_its_evaluators_along_and_is_replaced(
    template: Template,
) -> None:
    """Its evaluators' questions fail at once, and none of them is left behind."""
    evaluator = await template.fork()
    asking = asyncio.create_task(evaluator.ask(pickle.dumps(partial(time.sleep, 60))))
    process = process_of(template)
    with capture_logs() as logs:
        os.kill(process, signal.SIGKILL)

        with pytest.raises(EOFError):
            await asyncio.wait_for(asking, 60)

    assert [line["event"] for line in logs] == ["template of evaluators ended"]
    await eventually(lambda: not is_running(evaluator.pid))
    await evaluator.end()
    other = await template.fork()
    assert await is_sound(other)
    await other.end()


async def test_a_wait_for_an_evaluator_that_is_given_up_leaves_none(template: Template) -> None:
    """The evaluator comes, and ends when it finds its channel closed."""
    first = await template.fork()
    process = process_of(template)
    forking = asyncio.create_task(template.fork())
    while not template._forked:  # noqa: ASYNC110 - in the very turn of the loop in which it is asked
        await asyncio.sleep(0)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking

    await eventually(lambda: not template._forked and children(process) == [first.pid])
    assert await is_sound(first)
    await first.end()


@pytest.mark.parametrize("turns", range(8))
async def test_a_fork_that_is_given_up_late_leaves_nothing_in_the_loop(
    template: Template, turns: int
) -> None:
    """A descriptor that is closed while the loop watches it is soon another connection's."""
    forking = asyncio.create_task(template.fork())
    while not template._forked:  # noqa: ASYNC110 - each turn of the loop counts
        await asyncio.sleep(0)
    while template._forked:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    forking.cancel()
    with suppress(asyncio.CancelledError):
        await (await forking).end()

    loop: Any = asyncio.get_running_loop()
    for descriptor in loop._selector.get_map():
        os.fstat(descriptor)
    other = await template.fork()
    assert await is_sound(other)
    await other.end()


async def test_no_room_for_another_process_is_said_and_ends_no_other(template: Template) -> None:
    evaluator = await template.fork()
    process = process_of(template)
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (3, before[1]))  # no more than it has

    with pytest.raises(OSError, match="Too many open files"):
        await template.fork()

    resource.prlimit(process, resource.RLIMIT_NOFILE, before)
    other = await template.fork()
    assert await is_sound(evaluator)
    assert await is_sound(other)
    await asyncio.gather(evaluator.end(), other.end())
