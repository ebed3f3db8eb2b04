"""The console script, which is installed with the client, too: say what is missing then."""

import sys


def run() -> None:
    """Run the command line and exit with its code."""
    try:
        from rebaser_server.cli import main
    except ModuleNotFoundError as error:
        sys.exit(
            f"rebaser: {error.name} is not installed: this is the client alone. "
            "For the commands: pip install 'rebaser[server]'"
        )
    sys.exit(main())
