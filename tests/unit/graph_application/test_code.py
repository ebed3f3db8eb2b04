"""Which code values were computed with, and what is due because it is another one now."""

from pathlib import Path

import pytest

from rebaser_core.commits import code_reason, read_code
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_server.graph_application.code import (
    after_update,
    is_renewal,
    outdated,
    renewal_id,
    renewed,
)
from tests.helpers.graph_builder import install

USED = [("python", "price"), ("python", "missing")]
CHANGE_SET = ChangeSet(WorkspaceId(), ChangeSetId())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    release(tmp_path, "1.2")
    return tmp_path


def release(site: Path, version: str) -> None:
    source = f"def price(): return {version}"
    install(site, "pricing", source, {"price": "pricing:price"}, version=version)


def test_the_first_update_names_its_code_and_later_ones_only_what_they_mix_in(site: Path) -> None:
    first = after_update("", USED, is_last=True)
    assert list(read_code(first)) == ["pricing"]
    assert after_update(first, USED, is_last=True) == first
    assert outdated(first) == {}

    release(site, "1.3")
    assert after_update(first, [], is_last=True) == first
    mixed = after_update(first, USED, is_last=True)

    assert list(outdated(first)) == list(outdated(mixed)) == ["pricing"]
    release(site, "1.2")
    assert outdated(first) == {}
    assert list(outdated(mixed)) == ["pricing"]


def test_a_renewal_is_for_one_code_and_says_why_until_nothing_is_due(site: Path) -> None:
    before = after_update("", USED, is_last=True)
    release(site, "1.3")
    request = renewal_id(CHANGE_SET, before, 1.5)

    now = renewed(before, outdated(before))
    assert (outdated(now), code_reason(now)) == ({}, "new code: pricing 1.2 → 1.3")
    assert code_reason("pricing 1.2 3fa9 1.2") == "new code: pricing 1.2 is not what it was"
    assert after_update(now, USED, is_last=False) == now
    assert code_reason(after_update(now, USED, is_last=True)) is None

    assert renewal_id(CHANGE_SET, before, 1.5) == request != renewal_id(CHANGE_SET, before, 2)
    assert is_renewal(request, CHANGE_SET, before)
    assert not is_renewal(request, ChangeSet(CHANGE_SET.workspace_id, ChangeSetId()), before)
    release(site, "1.2")
    assert not is_renewal(request, CHANGE_SET, before)


def test_what_is_not_installed_makes_nothing_due(site: Path) -> None:
    """A daemon without a function would fail all values that have been computed with it."""
    text = after_update("", [*USED, ("builtin", "sum"), ("cel", "1 + 1")], is_last=True)
    assert len(read_code(text)) == 3
    assert outdated("gone 1.0 3fa9,damaged") == {}
