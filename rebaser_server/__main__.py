"""The command `rebaser`, which the client installs, too: there it says what is missing."""

import sys
from typing import Final

from rebaser_server.runtime.memory import collect_rarely

_OF_CLI: Final = frozenset({"prometheus_client", "pydantic_settings", "rich", "shtab", "structlog"})
"""Modules of the extra `cli`, which every command needs."""


def run() -> None:
    collect_rarely()
    try:
        from rebaser_server.commands.cli import main

        code = main()  # commands import what they need as they run
    except ModuleNotFoundError as error:
        what = (
            "Commands need more than the client: pip install --upgrade 'rebaser[cli]', or for all "
            "commands"
            if error.name in _OF_CLI
            else "This command needs more than others, or a newer release more than the one before "
            "it"
        )
        sys.exit(
            f"rebaser: the module {error.name!r} is not installed. {what}: "
            "pip install --upgrade 'rebaser[server]'"
        )
    sys.exit(code)


if __name__ == "__main__":
    run()
