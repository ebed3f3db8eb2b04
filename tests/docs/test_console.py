"""Every command that README and docs show prints what they say it prints.

`python -m tests.docs` writes down what the commands print now.
"""

from pathlib import Path

import pytest

from tests.docs.conftest import ROOT, Up
from tests.docs.console import Session, written_anew

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWING = [page for page in PAGES if "```console" in page.read_text()]


WITH_TABLES = [page for page in SHOWING if "rebaser tables" in page.read_text()]
"""Pages that start Spark, which makes theirs long tests."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.long if page in WITH_TABLES else ())
        for page in SHOWING
    ],
)
def test_commands_print_what_the_page_shows(up: Up, page: Path, tmp_path: Path) -> None:
    _, wrong = written_anew(page.read_text(), Session(tmp_path, variables(up)))

    assert not wrong, "\n\n".join(wrong) + "\n\npython -m tests.docs writes it into the page"


def variables(up: Up) -> dict[str, str]:
    """As if `rebaser up` ran where the commands are typed."""
    return {
        "REBASER_NATS__URL": up.nats.url,
        "REBASER_STORE__ROOT": str(up.store),
        "REBASER_ACK_WAIT": "2",
    }
