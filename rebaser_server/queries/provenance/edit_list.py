"""The edits that made a value, as they are listed for a client."""

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from itertools import zip_longest
from typing import Final

from rebaser_core import trace_context
from rebaser_core.ids import ChangeSetId
from rebaser_core.queries import DefinitionChange, ProvenanceEdit
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.queries.provenance.definition_history import CommittedEdit
from rebaser_server.queries.provenance.definition_states import FuncState, ValueState
from rebaser_server.queries.provenance.lineage import Lineage
from rebaser_server.queries.provenance.pending_update import time_of
from rebaser_server.queries.provenance.tracked_definitions import Attribution
from rebaser_server.runtime.tasks import compute_in_turn

MAX_EDITS: Final = 1_000
MAX_CHANGES: Final = 20
"""Changes of an edit that are listed."""
MAX_TRACES: Final = 50
"""Edits whose trace is looked up: each costs a read."""
MAX_TEXT: Final = 1_000
"""Characters of a definition."""
MAX_NAMES: Final = 200_000
"""Names in the paths of all changes that are listed."""

Parts = Sequence[Attribution[CommittedEdit]]

_CommitKey = tuple[ChangeSetId, int]


async def list_edits(
    loader: StateLoader, attributions: Parts, lineage: Lineage
) -> tuple[list[ProvenanceEdit], int]:
    """The edits, the latest first, and how many are left out."""
    workspace = str(loader.change_set.workspace_id)
    latest = await compute_in_turn(workspace, _by_commit, attributions)
    traces = [await _trace_of(loader, parts[0].edit) for parts in latest[:MAX_TRACES]]
    edits = await compute_in_turn(workspace, _described, latest[:MAX_EDITS], traces, lineage)
    return edits, max(0, len(latest) - MAX_EDITS)


def _by_commit(attributions: Parts) -> list[Parts]:
    """The parts of each edit, the latest edit first."""
    by_commit: dict[_CommitKey, list[Attribution[CommittedEdit]]] = {}
    for attribution in attributions:
        edit = attribution.edit
        by_commit.setdefault((edit.change_set_id, edit.commit), []).append(attribution)
    return sorted(
        by_commit.values(),
        key=lambda parts: (parts[0].edit.entry.id.milliseconds, parts[0].edit.commit),
        reverse=True,
    )


def _described(
    latest: Sequence[Parts], traces: Iterable[str | None], lineage: Lineage
) -> list[ProvenanceEdit]:
    """The edits with what is nearest of each, as long as there is room for the paths."""
    room, edits = MAX_NAMES, []
    for parts, trace in zip_longest(latest, traces):
        changes = []
        for part in nsmallest(MAX_CHANGES, parts, key=lambda each: _steps(each, lineage)):
            steps = _steps(part, lineage)
            if steps <= room:
                room -= steps
                changes.append(_change(part, lineage))
        edits.append(edit_of(parts[0].edit, changes, trace, len(parts) - len(changes)))
    return edits


def _steps(part: Attribution[CommittedEdit], lineage: Lineage) -> int:
    if part.part == "function":
        return lineage.steps_of_function(part.id)
    return lineage.steps(part.id)


def edit_of(
    edit: CommittedEdit,
    changes: list[DefinitionChange],
    trace: str | None = None,
    omitted: int = 0,
) -> ProvenanceEdit:
    """The edit with what it changed, of which so many changes are not listed."""
    handled = edit.entry.handled
    if handled is None:
        raise ValueError(f"commit {edit.commit} settles nothing")
    return ProvenanceEdit(
        change_set_id=edit.change_set_id,
        commit=edit.commit,
        time=time_of(edit.entry.id),
        request=handled.id,
        author=handled.author,
        trace=trace,
        changes=changes,
        omitted=omitted,
    )


def _change(part: Attribution[CommittedEdit], lineage: Lineage) -> DefinitionChange:
    if part.part == "function":
        path = [*lineage.path_of_function(part.id)]
    else:
        path = [*lineage.path(part.id)]
    return DefinitionChange(
        id=part.id,
        what=part.part,
        path=path,
        before=_text(part.before, lineage),
        after=_text(part.after, lineage),
    )


def _text(state: ValueState | FuncState, lineage: Lineage) -> str | None:
    """A definition in a few words: a source's JSON, `sum(values=[a, b])`, a function's code."""
    if isinstance(state, FuncState):
        text = None if state.runtime is None else f"{state.runtime}: {state.code}"
    elif state.func_id is None:
        text = state.text
    else:
        arguments = (
            f"{name}={_names(given, lineage)}" for name, given in (state.inputs or {}).items()
        )
        text = f"{lineage.func_names.get(state.func_id, state.func_id)}({', '.join(arguments)})"
    return text if text is None or len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _names(given: str | list[str], lineage: Lineage) -> str:
    if isinstance(given, str):
        return lineage.names.get(given, given)
    shown = ", ".join(lineage.names.get(each, each) for each in given[:MAX_CHANGES])
    return f"[{shown}{', …' if len(given) > MAX_CHANGES else ''}]"


async def _trace_of(loader: StateLoader, edit: CommittedEdit) -> str | None:
    """The trace that the log names for the commit; only of one that begins an update."""
    if not edit.begins_update:
        return None
    log = loader.log
    if edit.change_set_id != loader.change_set.change_set_id:
        log = loader.sibling(edit.change_set_id).log
    span = trace_context.span_context_in(await log.trace_headers(edit.commit))
    return None if span is None else f"{span.trace_id:032x}"
