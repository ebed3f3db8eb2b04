"""Which callable a runtime and a code stand for, and what is said if there is none."""

from pathlib import Path

import pytest

from rebaser_server.compute.errors import CodeDiffers, FunctionMissing
from rebaser_server.compute.functions import builtin
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.functions.runtimes import (
    code_digest,
    code_version,
    expected_code,
    require_code,
    resolve,
)
from tests.helpers.graph_builder import forget_code, install


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
        (
            "cobol",
            "MOVE",
            (
                "there is no runtime 'cobol', only 'builtin', 'python', 'cel', 'sql', 'arrow' and "
                "'pyspark'"
            ),
        ),
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
    assert code_version("python", "twice") is None


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
    digests = [code_digest("python", each) for each in ("dated", "dated@3", "dated@2")]
    assert digests[0] == digests[1] != digests[2]
    with pytest.raises(FunctionMissing, match=r"'dated@1' .*, only dated, dated@2, dated@3$"):
        resolve("python", "dated@1")


def test_the_code_of_python_is_its_distribution_by_all_files_of_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by nothing else in the folder, so that it is the same on all machines."""

    def digest(module: str, helper: str = "", version: str = "1.2") -> str:
        root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        install(root, "changing", module, {"it": "changing:it"}, version=version)
        (root / "changing_helper.py").write_text(helper)
        for other in ("other.py", "../bin/it.py", "__pycache__/changing.pyc"):
            (root / other).parent.mkdir(exist_ok=True)
            (root / other).write_text(str(root))
        record = root / f"changing-{version}.dist-info/RECORD"
        record.write_text(
            "changing.py,,\nchanging_helper.py,,\n../bin/it.py,,\n__pycache__/changing.pyc,,\n"
        )
        with monkeypatch.context() as patch:
            patch.syspath_prepend(root)
            forget_code()
            found = code_version("python", "it")
        assert found is not None
        assert found[:2] == ("changing", version)
        return found.digest

    one = "def it(): return 1"
    assert digest(one) == digest(one)
    others = digest("def it(): return 2"), digest(one, "x = 1"), digest(one, version="1.3")
    assert len({digest(one), *others}) == 4
    assert code_version("python", "missing") is code_digest("python", "missing") is None


def test_evaluators_have_the_code_that_was_planned_with() -> None:
    functions = [("builtin", "sum"), ("python", "missing")]
    require_code(functions, expected_code(functions))

    for place in (0, 1):
        with pytest.raises(CodeDiffers, match=r"rebaser\.builtin 1\.0 \(3fa9\)"):
            require_code(functions, {place: "rebaser.builtin 1.0 3fa9"})


def test_the_code_of_a_builtin_is_its_source_and_of_cel_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, engine = code_version("builtin", "sum"), code_version("cel", "1 + 1")
    assert own is not None
    assert engine is not None
    assert own.name == "rebaser.builtin"
    assert engine == code_version("cel", "1 + 2") != own
    assert None is not code_digest("cel", "1 + 1") != code_digest("cel", "1 + 2")
    with_zones = code_version("cel", "timestamp(x).getHours('Asia/Tokyo')")
    assert str(with_zones).startswith(f"cel-expr-python+tzdata {engine.version}+")

    changed = tmp_path / "builtin.py"
    changed.write_text(Path(builtin.__file__).read_text() + "# changed")
    monkeypatch.setattr(builtin, "__file__", str(changed))
    forget_code()

    assert own.digest != (code_version("builtin", "sum") or own).digest
    monkeypatch.undo()
    forget_code()
