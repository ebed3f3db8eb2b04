"""Each module of the product has a test file of its name, or a line that says which tests show it.

`rebaser_server/store/compaction.py` is tested by `tests/unit/store/test_compaction.py`; one of
`rebaser_core` or `rebaser_client` by one below `tests/unit/core` or `tests/unit/client`. Tests with
servers lie in flat folders, so there the name alone counts, if no other module has it.
"""

from collections import Counter
from pathlib import PurePath

from tests.helpers.paths import ROOT
from tests.helpers.product import MODULES

FLAT = ("tests/integration", "tests/security", "tests/jetstream", "tests/spark")
"""Where tests lie that need a server, or Spark."""

ELSEWHERE = dict(
    line.split() for line in (ROOT / "tests/unit/tested_elsewhere.txt").read_text().splitlines()
)
"""Modules without a test file of their name, and the tests that show what they do."""

PATHS = [PurePath(path) for path in MODULES if not path.endswith("__init__.py")]
NAMES = Counter(path.stem for path in PATHS)


def has_its_own_test(path: PurePath) -> bool:
    package, *folders = path.parent.parts
    below = folders if package == "rebaser_server" else [package[len("rebaser_") :], *folders]
    file = f"test_{path.stem.strip('_')}.py"
    candidates = [ROOT.joinpath("tests/unit", *below, file)]
    if NAMES[path.stem] == 1:
        candidates += [ROOT / folder / file for folder in FLAT]
    return any(candidate.exists() for candidate in candidates)


def test_each_module_has_a_test_file_of_its_name_or_is_listed() -> None:
    """The list only shrinks: no module on it has a test file of its name, and each exists."""
    without = {str(path) for path in PATHS if not has_its_own_test(path)}

    assert without - ELSEWHERE.keys() == set(), "write a test file of their names"
    assert ELSEWHERE.keys() - without == set(), "take them off tests/unit/tested_elsewhere.txt"


def test_the_tests_that_are_listed_instead_exist() -> None:
    """A list that leads nowhere would be no better than none."""
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []
