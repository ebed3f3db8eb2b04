"""What makes the command line pleasant: completion, flags, remedies, logs, the page's address."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rebaser_client import errors
from rebaser_core.errors import ClientError
from rebaser_server.commands.declarations import SHELLS
from rebaser_server.commands.support.execution import hint_for
from tests.helpers.batches import ExampleGraph
from tests.helpers.command_line import Commands
from tests.helpers.deployment import SCALED, Deployment, new_change_sets
from tests.helpers.nats_process import NatsServer
from tests.helpers.paths import ROOT
from tests.integration.test_command_line import REBASER, rebaser

OPERATING = (ROOT / "docs/operating.md").read_text()


@pytest.mark.parametrize("error", ClientError.__subclasses__(), ids=lambda error: error.__name__)
def test_there_is_something_to_do_about_every_error_of_asking(error: type[ClientError]) -> None:
    assert error.__module__ in {errors.__name__, ClientError.__module__}
    assert hint_for(error.__new__(error, "why")) is not None


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_is_one_that_its_shell_reads(shell: str, tmp_path: Path) -> None:
    done = rebaser("completion", shell)

    assert done.returncode == 0
    assert "dead-letters" in done.stdout
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(done.stdout)
        subprocess.run([shell, "-n", script], check=True)


def test_bash_completes_commands_verbs_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(rebaser("completion", "bash").stdout)

    def completed(*words: str) -> set[str]:
        line = " ".join(words)
        code = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            f"COMP_LINE='{line}'; _shtab_rebaser; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
        return set(done.stdout.split())

    assert {"dvu", "doctor"} <= completed("rebaser", "d")
    assert {"status", "cancel", "run"} <= completed("rebaser", "dvu", "''")
    assert "--failed" in completed("rebaser", "dvu", "run", "--f")


async def test_an_error_says_what_to_do(deployment: Deployment) -> None:
    given = Commands(deployment)
    unknown = "01JZ8M3Q7V0000000000000003"
    await deployment.start()
    [change_set] = new_change_sets(1)
    await deployment.client.enqueue_updates(*change_set, ExampleGraph().define())
    await deployment.at_rest()

    nothing = await given.tell("change-sets", "fork", unknown, "x", code=1)
    past = await given.tell("values", *change_set, "--at", 7, code=1)
    name = await given.tell("values", "set", *change_set, "nobody", "1", code=1)

    assert "rebaser workspaces list" in nothing
    assert "rebaser log" in past
    assert "rebaser values --tree" in name


def test_a_reader_that_closes_the_pipe_early_causes_no_error() -> None:
    code = f"{REBASER} completion bash | head -1; exit ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def said_in_a_terminal(words: list[str], until: str, directory: Path, **variables: str) -> str:
    """What a command shows on a terminal up to `until`; then it is stopped."""
    ours, theirs = pty.openpty()
    scaled = {f"REBASER_{key}": value for key, value in (SCALED | variables).items()}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    process = subprocess.Popen(
        [REBASER, *words], stdout=theirs, stderr=theirs, cwd=directory, env=inherited | scaled
    )
    os.close(theirs)

    try:
        text, end = b"", time.monotonic() + 120
        while until.encode() not in text and time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                text += os.read(ours, 65536)
        return text.decode(errors="replace")  # its end may be half a character
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        os.close(ours)


def test_logs_in_a_terminal_are_for_people(nats_server: NatsServer, tmp_path: Path) -> None:
    said = said_in_a_terminal(["serve"], "ready", tmp_path, NATS__URL=nats_server.url)

    assert '"event": "ready"' not in said
    assert "instance" not in said


def test_up_says_where_its_page_is(tmp_path: Path) -> None:
    said = said_in_a_terminal(["up", "--port", "-1"], "Ctrl-C", tmp_path)

    assert len(re.findall(r"page +http://127\.0\.0\.1:\d+/", said)) == 1
