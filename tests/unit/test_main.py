"""The console script where not all is installed that the commands need."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["pydantic_settings", "aiohttp"], ids=["at once", "later"])
def test_a_missing_package_is_named_with_a_hint(module: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv = ['rebaser', 'serve'];"
        "from rebaser_server.__main__ import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert done.returncode == 1
    assert f"the module {module!r} is not installed" in done.stderr
    assert "pip install --upgrade 'rebaser[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_slow_imports_wait_until_needed():
    """Each of these takes as long as half of a start."""
    code = (
        "import sys, rebaser_server.service.daemon; "
        "print({'pandas', 'pyspark', 'scipy'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout == "set()\n"
