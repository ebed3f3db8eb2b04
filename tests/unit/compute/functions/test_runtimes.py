"""Which callable a runtime and a code stand for, and what is said if there is none."""

from pathlib import Path

import pytest

from rebaser_server.compute.errors import FunctionMissing
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.functions.runtimes import resolve
from tests.helpers.graph_builder import install


def test_builtin_is_by_name() -> None:
    assert resolve("builtin", "sum") is BUILTINS["sum"]


def test_python_is_an_installed_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "measures", "def weight(): return 7", {"weight": "measures:weight"})
    monkeypatch.syspath_prepend(tmp_path)

    assert resolve("python", "weight")() == 7


@pytest.mark.parametrize(
    ("runtime", "code", "message"),
    [
        ("builtin", "summ", "there is no builtin function 'summ'"),
        ("python", "os:system", "no Python function 'os:system' is installed here"),
        ("cobol", "MOVE", "there is no runtime 'cobol', only 'builtin', 'python' and 'cel'"),
    ],
)
def test_a_missing_function_is_named(runtime: str, code: str, message: str) -> None:
    with pytest.raises(FunctionMissing) as error:
        resolve(runtime, code)

    assert str(error.value) == message


def test_a_function_that_does_not_load_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken", "import no_such_module", {"broken": "broken:it"})
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(FunctionMissing, match=r"'broken' does not load: .*no_such_module"):
        resolve("python", "broken")


def test_two_functions_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        install(tmp_path, name, "def it(): return 1", {"twice": f"{name}:it"})
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(FunctionMissing, match="more than one Python function 'twice'"):
        resolve("python", "twice")


VERSIONS = """
def now(): return "now"
now.version = "3"
def then(): return "then"
"""


def test_versions_stand_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "dated", VERSIONS, {"dated": "dated:now", "dated@2": "dated:then"})
    monkeypatch.syspath_prepend(tmp_path)

    assert resolve("python", "dated")() == "now"
    assert resolve("python", "dated@3")() == "now"
    assert resolve("python", "dated@2")() == "then"
    with pytest.raises(FunctionMissing, match=r"'dated@1' .*, only dated, dated@2, dated@3$"):
        resolve("python", "dated@1")
