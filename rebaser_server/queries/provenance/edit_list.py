"""The edits that made a value, as they are listed for a client."""

from collections.abc import Sequence
from typing import Final

from rebaser_core import trace_context
from rebaser_core.ids import ChangeSetId
from rebaser_core.queries.provenance_query import DefinitionChange, ProvenanceEdit
from rebaser_server.commit_log.state_loader import StateLoader
from rebaser_server.queries.provenance.definition_history import CommittedEdit
from rebaser_server.queries.provenance.definition_states import FuncState, ValueState
from rebaser_server.queries.provenance.lineage import Lineage
from rebaser_server.queries.provenance.pending_update import time_of
from rebaser_server.queries.provenance.tracked_definitions import Attribution

MAX_EDITS: Final = 1_000
MAX_CHANGES: Final = 20
"""Changes of an edit that are listed."""
MAX_TRACES: Final = 50
"""Edits whose trace is looked up: each costs a read."""
MAX_TEXT: Final = 1_000
"""Characters of a definition."""

Parts = Sequence[Attribution[CommittedEdit]]

_CommitKey = tuple[ChangeSetId, int]


async def list_edits(
    loader: StateLoader, attributions: Parts, lineage: Lineage
) -> tuple[list[ProvenanceEdit], int]:
    """The edits, the latest first, and how many are left out."""
    by_commit: dict[_CommitKey, list[Attribution[CommittedEdit]]] = {}
    for attribution in attributions:
        edit = attribution.edit
        by_commit.setdefault((edit.change_set_id, edit.commit), []).append(attribution)
    latest = sorted(
        by_commit.values(),
        key=lambda parts: (parts[0].edit.entry.id.milliseconds, parts[0].edit.commit),
        reverse=True,
    )
    edits = []
    for place, parts in enumerate(latest[:MAX_EDITS]):
        trace = await _trace_of(loader, parts[0].edit) if place < MAX_TRACES else None
        edits.append(_described(parts, lineage, trace))
    return edits, max(0, len(latest) - MAX_EDITS)


def _described(parts: Parts, lineage: Lineage, trace: str | None) -> ProvenanceEdit:
    changes = sorted((_change(part, lineage) for part in parts), key=lambda each: len(each.path))
    return edit_of(parts[0].edit, changes, trace)


def edit_of(
    edit: CommittedEdit, changes: list[DefinitionChange], trace: str | None = None
) -> ProvenanceEdit:
    """The edit with what it changed."""
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
        changes=changes[:MAX_CHANGES],
        omitted=max(0, len(changes) - MAX_CHANGES),
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
