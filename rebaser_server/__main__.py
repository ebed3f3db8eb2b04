"""The command `rebaser`, which the client installs, too: it says there what is missing."""

import sys


def run() -> None:
    """Run the command line and exit with its code."""
    try:
        from rebaser_server.commands.cli import main

        code = main()  # commands import what they need as they run
    except ModuleNotFoundError as error:
        sys.exit(
            f"rebaser: the module {error.name!r} is not installed. The commands need more than the "
            "client, and a newer release perhaps more than the one before it: "
            "pip install --upgrade 'rebaser[server]'"
        )
    sys.exit(code)


if __name__ == "__main__":
    run()
