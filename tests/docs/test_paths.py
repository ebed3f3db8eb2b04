"""Every file, directory, test and setting that a page names exists, with the default it has."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import reduce
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from rebaser_server.settings.settings import Settings, setting_names
from tests.docs.conftest import ROOT

PATH = re.compile(r"`((?:rebaser_core|rebaser_client|rebaser_server|tests|docs|deploy)/[\w./-]+)`")

TEST = re.compile(r"\btest_[a-z0-9_]+\b")

TESTS = {
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in [path.stem, *re.findall(r"def (test_\w+)", path.read_text())]
}

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
PAGES += [*(ROOT / "tests" / "mutants").glob("*.md"), *(ROOT / "tests" / "chaos").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_on_a_page_exists(page: Path) -> None:
    """A reader who opens a file that a page names must find it."""
    named = PATH.findall(page.read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_on_a_page_exists(page: Path) -> None:
    """A page proves a statement by the test that it names."""
    assert {name for name in TEST.findall(page.read_text()) if name not in TESTS} == set()


VARIABLE = re.compile(r"\b(?:KV_|OBJ_)?REBASER_[A-Z0-9_]*")
SHORTENED = re.compile(r"…(__[A-Z_]+)")
GROUP_OF_TABLE = re.compile(
    r"^\| `(REBASER_[A-Z]+__)` \|.*\n\|[-:| ]+\|\n((?:\|.*\n)*)", re.MULTILINE
)
ROW = re.compile(r"^\| `([A-Z_]+)` \|", re.MULTILINE)
NOT_SETTINGS = {
    *(f"REBASER_{name}" for name in ("REQUESTS", "TASKS", "COMMITS", "DEAD_LETTERS")),
    *(f"REBASER_{name}" for name in ("BATCHES", "CHANGE_SETS", "PAUSES", "STORE", "ALARMS")),
}
"""Streams and buckets."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_on_a_page_exists(page: Path) -> None:
    """Whole, as a group, the beginning or the end of others, or in a table with their beginning."""
    text, settings = page.read_text(), set(setting_names())
    named = set(VARIABLE.findall(text))
    for group, rows in GROUP_OF_TABLE.findall(text):
        named |= {group + name for name in ROW.findall(rows)}

    unknown = {
        name
        for name in named
        if name not in settings | NOT_SETTINGS
        and not (name.endswith("_") and any(each.startswith(name) for each in settings))
        and not any(each.startswith(f"{name}__") for each in settings)
        and not name.startswith(("KV_", "OBJ_"))
    }
    assert unknown == set()
    ends = SHORTENED.findall(text)
    assert [end for end in ends if not any(each.endswith(end) for each in settings)] == []


AS_TABLE = re.compile(r"^\| (.*) \|\n\|[-:| ]+\|\n((?:\|.*\n)*)", re.MULTILINE)
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "hours": 3_600, "days": 86_400}
QUANTITY = rf"[0-9][0-9,]*(?: (?:{'|'.join(UNITS)})\b)?"
IN_WORDS = re.compile(rf"`([A-Z_]+)`(?:, | \()({QUANTITY})[,;:). ]")


def defaults_on(page: Path) -> Iterator[tuple[str, str]]:
    """A setting's name, or the last of it, and what the page says of its default."""
    text = page.read_text()
    for head, rows in AS_TABLE.findall(text):
        group = re.fullmatch(r"`(REBASER_[A-Z]+__)`.*", head)
        if re.search(r"\| default( \||$)", head):
            for name, default in re.findall(r"^\| `([A-Z_]+)` \| (.*?) \|", rows, re.MULTILINE):
                yield (group[1] if group else "") + name, default.strip("`")
    yield from IN_WORDS.findall(text)


def default_of(variable: str) -> object:
    path = variable.removeprefix("REBASER_").lower().split("__")
    return reduce(getattr, path, Settings())


def is_said(default: object, words: str) -> bool:
    if not re.fullmatch(QUANTITY, words):
        return default == (
            None if words == "none" else TypeAdapter(timedelta).validate_python(words)
        )
    number, _, unit = words.replace(",", "").partition(" ")
    said = int(number) * UNITS.get(unit, 1)
    return said == (default.total_seconds() if isinstance(default, timedelta) else default)


def test_every_default_on_a_page_is_that_of_the_setting() -> None:
    """Wherever a page says it: readers reckon with it."""
    said = [(page.name, *each) for page in PAGES for each in defaults_on(page)]
    wrong = [
        (page, name, words)
        for page, name, words in said
        if not any(
            is_said(default_of(each), words)
            for each in setting_names()
            if each == name or each.endswith(f"__{name}")
        )
    ]

    assert len(said) > 15
    assert wrong == []
