"""Importing the client is quick: what is slow or an extra waits until it is asked for."""

import subprocess
import sys

HEAVY = ("pandas", "pyarrow", "yaml", "numpy", "polars", "rebaser_server", "rich", "blockbuster")


def test_importing_the_client_imports_nothing_heavy() -> None:
    """Neither does the client without `await`."""
    code = (
        "import sys, rebaser_client, rebaser_client.sync, rebaser_client.drafts.graph_file;"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
