"""Pages for those who change the code follow it: the drawing, and the functions that they name."""

import ast
import importlib.util
import re
from collections.abc import Iterator

import pytest

from tests.docs.conftest import ROOT
from tests.helpers.product import MODULES

STEP = re.compile(r"^\d+\. (.*(?:\n {3}.*)*)", re.MULTILINE)
ROW = re.compile(r"^\| (\*\*.*\(\)`.*)", re.MULTILINE)
FUNCTION = re.compile(r"`([\w.]+)\(\)`")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
FILE = re.compile(r"`(\w[\w/]*\.py)`")

PLACES = [
    *STEP.findall((ROOT / "docs" / "architecture.md").read_text()),
    *ROW.findall((ROOT / "CONTRIBUTING.md").read_text()),
]

SPEC = importlib.util.spec_from_file_location("drawing", ROOT / "docs" / "drawing.py")
drawing = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(drawing)


def functions(source: str) -> Iterator[str]:
    """Yield the functions of a module, and the methods of its classes with the class's name."""
    for node in ast.parse(source).body:
        if isinstance(node, FUNCTIONS):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, FUNCTIONS))
            yield from (f"{node.name}.{each.name}" for each in methods)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place.split()[:4]))
def test_functions_are_in_the_files_that_are_named_with_them(place: str) -> None:
    """A reader who follows a request must find each function where the step says."""
    there = {name for path in FILE.findall(place) for name in functions(MODULES[path])}
    named = FUNCTION.findall(place)

    assert named
    assert [name for name in named if name not in there] == []


def test_the_drawing_is_that_of_its_text() -> None:
    """Mended by `python docs/drawing.py`."""
    assert drawing.TARGET.read_text() == drawing.draw(drawing.SOURCE.read_text())


def test_the_drawing_shows_classes_files_and_packages_that_exist() -> None:
    """A box is about a file or a package of the server, unless it is outside of it."""
    boxes = re.findall(
        r"^box \w+: .* part +\| (.+?) \| ([\w/.]+)", drawing.SOURCE.read_text(), re.MULTILINE
    )
    below = {path.removeprefix("rebaser_server/") for path in MODULES}

    for title, where in boxes:
        files = [path for path in below if path == where or path.startswith(f"{where}/")]
        assert files, where
        sources = "\n".join(MODULES[f"rebaser_server/{path}"] for path in files)
        for name in re.findall(r"\b[A-Z]\w+", title):
            assert f"class {name}" in sources, name


def test_a_line_that_draws_nothing_is_an_error() -> None:
    """A mistake in the text must not leave something out."""
    with pytest.raises(ValueError, match="neither a frame, a box nor an arrow"):
        drawing.draw("box a: 0 0 part title")
