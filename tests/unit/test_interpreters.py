"""Programs of ours start Python by the path of the one that runs them: `python` may be missing."""

import ast
from collections.abc import Iterator

import pytest

from tests.helpers.paths import ROOT

PLACES = ("benchmarks", "docs", "examples", "rebaser_client", "rebaser_core", "rebaser_server")
FILES = [path for place in (*PLACES, "tests") for path in sorted((ROOT / place).rglob("*.py"))]
STARTERS = {
    *("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    *("create_subprocess_exec", "create_subprocess_shell", "system", "popen", "which"),
    *("execv", "execve", "execvp", "execvpe", "execl", "execlp", "spawnv", "posix_spawn"),
}


def started(code: str) -> Iterator[str]:
    """The first word of each command that is written out where a program is started."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and node.args and name_of(node.func) in STARTERS:
            command = node.args[0]
            if isinstance(command, ast.List | ast.Tuple) and command.elts:
                command = command.elts[0]
            if isinstance(command, ast.Constant) and isinstance(command.value, str):
                yield command.value.partition(" ")[0]


def name_of(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def bare(code: str) -> list[str]:
    return [word for word in started(code) if word.startswith("python")]


@pytest.mark.parametrize(
    "code",
    [
        'subprocess.run(["python", "-c", code], check=False)',
        'await asyncio.create_subprocess_exec("python3", "-V")',
        'os.system("python3.11 -V")',
        'shutil.which("python")',
    ],
)
def test_a_bare_python_is_seen(code: str) -> None:
    assert bare(code)


def test_no_program_of_ours_starts_a_bare_python() -> None:
    found = {str(path.relative_to(ROOT)): bare(path.read_text()) for path in FILES}

    assert {path: words for path, words in found.items() if words} == {}
