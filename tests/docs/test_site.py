"""The docs build into a site without a broken link or anchor; it needs nothing from elsewhere."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']([^"']+)""")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:)([^)#\s]+)?(?:#[^)]*)?\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [Path(sys.executable).parent / "properdocs", "build", "--strict", "--site-dir", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_there(site: Path) -> None:
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}

    assert pages <= {page.stem for page in site.glob("*.html")}


def test_language_models_are_told_of_every_page(site: Path) -> None:
    """By https://llmstxt.org: a title, a summary, lists of links."""
    told = (site / "llms.txt").read_text()
    pages = re.findall(r"^- \[[^\]]+\]\(([\w-]+)\.html\): \S", told, re.MULTILINE)

    assert told.startswith("# Rebaser\n\n> Rebaser keeps")
    assert {*pages, "index"} == {page.stem for page in (ROOT / "docs").glob("*.md")}


def test_the_search_comes_with_its_index(site: Path) -> None:
    """A browser would take seconds to build it."""
    built = json.loads((site / "search" / "search_index.json").read_text())["index"]

    assert len(built["fieldVectors"]) > len(list(site.glob("*.html")))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        elsewhere = [what for what in LOADED.findall(page.read_text()) if what.startswith("http")]
        assert not elsewhere, page.name


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
        *("deploy/helm/rebaser/README.md", "rebaser_core/jetstream/README.md"),
        *("tests/jetstream/statements.md", "tests/mutants/faults.md", "tests/mutants/rules.md"),
        *("examples/README.md", "examples/debian/README.md", "examples/own-function/README.md"),
        "tests/chaos/README.md",
    ],
)
def test_links_outside_of_docs_lead_somewhere(page: str) -> None:
    there = ROOT / page

    for target in filter(None, LINK.findall(there.read_text())):
        assert (there.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_whom_it_is_for(page: Path) -> None:
    """A reader decides by the first sentence whether to go on."""
    opening = page.read_text().split("\n\n")[1]

    assert opening.startswith("For ") or page.name == "index.md"
