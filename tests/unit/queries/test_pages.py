"""Pages of values: all of them, each once, none larger than an answer may be."""

import pytest

from rebaser_core.ids import ChangeSetId, RequestId, WorkspaceId
from rebaser_core.queries import ValuesQueryV2
from rebaser_core.updates import PutValue
from rebaser_server.commit_log.state import State
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.queries.values import TooManyValues, ValuesFound, prepare_find
from rebaser_server.values.rebase import rebase

IDS = [f"{number:026}" for number in (3, 1, 2)]


def found(after: str | None, *which: str, most: int = 700) -> ValuesFound:
    state = State(GraphContent())
    puts = [PutValue(value_id=each, name=each[-1], value="x" * 200) for each in IDS]
    rebase(graph_of(state), 1, puts)
    query = ValuesQueryV2(
        id=RequestId(),
        workspace_id=WorkspaceId(),
        change_set_id=ChangeSetId(),
        which=list(which),
        after=after,
    )
    return prepare_find(query, most, state)()


def test_pages_go_by_id_and_say_where_the_next_one_begins() -> None:
    first = found("")
    second = found(first.next)

    assert [row.id for row in (*first.rows, *second.rows)] == sorted(IDS)
    assert (first.next, second.next) == (sorted(IDS)[1], None)


def test_who_reads_no_pages_is_refused_what_is_too_large() -> None:
    with pytest.raises(TooManyValues, match="more than 700 bytes"):
        found(None)
    with pytest.raises(TooManyValues, match="more than 300 bytes"):
        found("", most=300)


def test_a_value_is_found_by_name_and_by_id_and_comes_once() -> None:
    one = found(None, "1", IDS[1], "nobody")

    assert [row.id for row in one.rows] == [IDS[1]]
    assert one.missing == ["nobody"]
