"""Names, and who is meant by them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser_core.errors import UnknownSubject
from rebaser_core.ids import ChangeSet, ChangeSetId, WorkspaceId
from rebaser_core.subjects import Subjects

W, C = "01JZ8M3Q7V0000000000000003", "01JZ8M3Q7V0000000000000004"
CHANGE_SET = ChangeSet(WorkspaceId.from_str(W), ChangeSetId.from_str(C))
EITHER = pytest.mark.parametrize("prefix", [None, "acme-1_x"])
KINDS = pytest.mark.parametrize(
    "kind",
    [
        "requests",
        "task",
        "commits",
        "dead_letters",
        "activities",
        "outcomes",
        "cancellations",
    ],
)


def test_subjects_without_a_prefix_have_plain_names():
    subjects = Subjects()

    assert subjects.requests(CHANGE_SET) == f"rebaser.requests.{W}.{C}"
    assert subjects.task(CHANGE_SET) == f"rebaser.tasks.{W}.{C}.process"
    assert subjects.commits(CHANGE_SET) == f"rebaser.commits.{W}.{C}"
    assert subjects.dead_letters(CHANGE_SET) == f"rebaser.dead-letters.{W}.{C}"
    assert subjects.activities(CHANGE_SET) == f"rebaser.activities.{W}.{C}"
    assert subjects.outcomes(CHANGE_SET) == f"rebaser.outcomes.{W}.{C}"
    assert subjects.requests_stream == "REBASER_REQUESTS"


def test_a_prefix_is_before_every_name():
    subjects = Subjects("acme")

    assert subjects.requests(CHANGE_SET) == f"acme.rebaser.requests.{W}.{C}"
    assert subjects.task(CHANGE_SET) == f"acme.rebaser.tasks.{W}.{C}.process"
    assert [
        subjects.requests_stream,
        subjects.tasks_stream,
        subjects.commits_stream,
        subjects.dead_letters_stream,
        subjects.batches_bucket,
    ] == [
        "acme_REBASER_REQUESTS",
        "acme_REBASER_TASKS",
        "acme_REBASER_COMMITS",
        "acme_REBASER_DEAD_LETTERS",
        "acme_REBASER_BATCHES",
    ]


@EITHER
@KINDS
def test_a_subject_names_its_change_set(prefix, kind):
    subjects = Subjects(prefix)

    assert subjects.parse_change_set(getattr(subjects, kind)(CHANGE_SET)) == CHANGE_SET


@pytest.mark.parametrize(
    "subject",
    [
        "",
        ".",
        "rebaser",
        "rebaser.",
        "rebaser.requests",
        f"rebaser.requests.{W}",
        f"rebaser.requests.{W}.{C}.process",
        f"rebaser.requests.{W}.{C}.",
        f"rebaser.tasks.{W}.{C}",
        f"rebaser.tasks.{W}.{C}.other",
        f"rebaser.tasks.{W}.{C}.process.more",
        f"rebaser.others.{W}.{C}",
        f"other.requests.{W}.{C}",
        f"acme.rebaser.requests.{W}.{C}",
        f"rebaser.requests.{W}.{C.lower()}",
        f"rebaser.requests..{C}",
        f"rebaser.requests.*.{C}",
        f"rebaser.requests.{W}.>",
        f"rebaser.requests.{W}.{C[:-1]}",
        f"rebaser.requests.{W}.{'é' * 26}",
        f"rebaser.requests.{W}.{C}\n",
        f" rebaser.requests.{W}.{C}",
        f"rebaser.requests.{W}.8{C[1:]}",
        "rebaser.requests." + "x." * 100_000,
    ],
)
def test_any_other_subject_is_unknown(subject):
    with pytest.raises(UnknownSubject) as caught:
        Subjects().parse_change_set(subject)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "subject", [f"rebaser.requests.{W}.{C}", f"acmerebaser.requests.{W}.{C}", f"acme.{W}.{C}"]
)
def test_a_subject_without_the_prefix_is_not_ours(subject):
    with pytest.raises(UnknownSubject, match=r"does not start with acme\.rebaser\."):
        Subjects("acme").parse_change_set(subject)


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from(["rebaser", "tasks", W, C, "process"])).map(".".join))
def test_whatever_is_understood_is_written_the_same(subject):
    """So no change set can be reached under two names."""
    subjects = Subjects()
    try:
        named = subjects.parse_change_set(subject)
    except UnknownSubject:
        return

    assert subject in (getattr(subjects, kind)(named) for kind in ("requests", "task", "commits"))


@pytest.mark.parametrize("prefix", ["a.b", "a b", "*", ">", "$JS", "x" * 65, "é", "a\n"])
def test_a_prefix_is_one_plain_token(prefix):
    with pytest.raises(ValueError, match="prefix"):
        Subjects(prefix)


def test_an_empty_prefix_is_none():
    assert Subjects("").requests(CHANGE_SET) == Subjects().requests(CHANGE_SET)
