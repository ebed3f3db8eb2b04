"""The command line in this process, as a person types it: quick enough for many commands a test."""

import asyncio
import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from rebaser_server.commands.cli import main
from tests.helpers.deployment import Deployment


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def run_command(words: Sequence[str], variables: Mapping[str, str]) -> Done:
    """Run one in this process, with these of the variables that are settings."""
    out, err = io.StringIO(), io.StringIO()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REBASER_")}
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.dict(os.environ, {**environment, **variables}, clear=True),
    ):
        try:
            code = main(words)
        except SystemExit as error:  # argparse's
            code = int(error.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


class Commands:
    """Gives commands to a deployment."""

    def __init__(self, deployment: Deployment, **settings: str) -> None:
        """`settings`: further ones, by their names without the prefix."""
        self._variables = {f"REBASER_{name}": value for name, value in settings.items()} | {
            "REBASER_NATS__URL": deployment.nats.url,
            "REBASER_STORE__ROOT": deployment.settings.store.root,
        }

    async def give(self, *words: Any) -> Done:
        """Run one to its end, beside the test's own work."""
        return await asyncio.to_thread(run_command, [str(word) for word in words], self._variables)

    async def tell(self, *words: Any, code: int = 0) -> str:
        """What it says on stdout, or on stderr if it is to fail with `code`."""
        done = await self.give(*words)
        assert done.code == code, (done.out, done.err)
        return done.out if code == 0 else done.err

    async def read(self, *words: Any) -> Any:
        """What it says with `--json`."""
        return json.loads(await self.tell(*words, "--json"))
