"""A question to a person holds up the end of a command in no way."""

import signal
import subprocess
import sys

import pytest

_COMMAND = """
import argparse, sys
from rebaser_server.commands.support.arguments import confirmed
from rebaser_server.commands.support.execution import execute

async def ask(settings, arguments):
    return 0 if await confirmed("Apply it?") else 1

limit = float(sys.argv[1]) if sys.argv[1:] else None
sys.exit(execute(argparse.Namespace(action="ask", handler=ask, timeout=limit)))
"""


def asking(*words: str) -> "subprocess.Popen[bytes]":
    """A command whose question was asked, and is not answered."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _COMMAND, *words]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stderr is not None
    assert process.stderr.read(len("Apply it? [y/N] ")) == b"Apply it? [y/N] "
    return process


@pytest.mark.parametrize(("answer", "code"), [(b"YES \r\n", 0), (b"\xff\n", 1), (b"", 1)])
def test_an_answer_is_a_line_of_stdin(answer: bytes, code: int) -> None:
    """Nothing, and what is not UTF-8, is no."""
    with asking() as process:
        process.communicate(answer, timeout=60)

    assert process.returncode == code


def test_ctrl_c_ends_a_command_that_asks() -> None:
    """People who are asked may press Enter much later, or never."""
    with asking() as process:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=120)
        finally:
            process.kill()

    assert code == 130


def test_a_timeout_ends_a_command_that_asks() -> None:
    """The limit is that of the whole command."""
    with asking("0.5") as process:
        try:
            code = process.wait(timeout=120)
        finally:
            process.kill()

    assert code == 7
