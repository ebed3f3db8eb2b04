"""Why a value is what it is: the edits that made it, and what keeps it back."""

from dataclasses import dataclass
from typing import Final

from rebaser_client.display.html import html_table
from rebaser_core.queries import (
    DefinitionChange,
    DueUpdate,
    FailedInput,
    ProvenanceEdit,
    ProvenanceReplyV1,
    ValueSnapshot,
)

_ARROW: Final = " → "
_WORDS: Final = {
    "definition": "defined as",
    "value": "set to",
    "inputs": "computed as",
    "input": "lost an input, now",
    "function": "function",
    "removal": "removed",
}


@dataclass(frozen=True, slots=True)
class Provenance:
    """The edits without which a value would be another one, as of one commit."""

    commit: int
    value: ValueSnapshot | None
    """None of a value that was removed; `edits` has the removal."""
    edits: tuple[ProvenanceEdit, ...]
    """The latest first."""
    omitted: int
    """Edits that are not listed: more than a thousand."""
    older: int
    """How many definitions are, at least in part, older than the commits that are kept."""
    kept_from: int
    """The commit behind which commits are kept; 0 if all are."""
    is_whole: bool
    """Whether all that the value is computed from was looked at: up to 100,000 values."""
    failed: tuple[FailedInput, ...]
    """The failed values because of which the value has no result; it may be the value itself."""
    waits: DueUpdate | None
    """The update that is to recompute the value; None if it is up to date."""

    @classmethod
    def of(cls, reply: ProvenanceReplyV1) -> "Provenance":
        """What a reply says."""
        return cls(
            reply.commit,
            reply.value,
            tuple(reply.edits),
            reply.omitted,
            reply.older,
            reply.kept_from,
            reply.is_whole,
            tuple(reply.failed),
            reply.waits,
        )

    def rows(self) -> list[tuple[int, str, str, str, str]]:
        """Of each change of an edit its commit, time, author, what it did, and the path."""
        return [row for edit in self.edits for row in self.rows_of(edit)]

    @staticmethod
    def rows_of(edit: ProvenanceEdit) -> list[tuple[int, str, str, str, str]]:
        """The rows of one edit."""
        author = edit.author or ""
        rows = [
            (edit.commit, edit.time, author, _what(change), _ARROW.join(change.path))
            for change in edit.changes
        ]
        if edit.omitted:
            rows.append((edit.commit, edit.time, author, f"and {edit.omitted:,} more changes", ""))
        return rows

    def notes(self) -> list[str]:
        """What the edits do not tell, a sentence each."""
        notes = [f"{_ARROW.join(each.path)} failed: {each.message}" for each in self.failed]
        if self.waits is not None:
            notes.append(_waiting(self.waits))
        if self.omitted:
            notes.append(f"{self.omitted:,} earlier edits are left out")
        if self.older:
            notes.append(
                f"{self.older:,} of the definitions are older, at least in part, than the commits "
                + (f"that are kept: those after {self.kept_from}" if self.kept_from else "here")
            )
        if not self.is_whole:
            notes.append("the value is computed from more values than were looked at")
        return notes

    def _repr_html_(self) -> str:
        headings = "commit", "time", "author", "what", "path"
        return html_table(headings, self.rows(), "; ".join(self.notes()))


def _what(change: DefinitionChange) -> str:
    """What an edit did to the first of the path."""
    words = [change.path[0], _WORDS.get(change.what, change.what), change.after or ""]
    if change.what in ("value", "function", "input") and change.before is not None:
        words.append(f"(was {change.before})")
    return " ".join(filter(None, words))


def _waiting(due: DueUpdate) -> str:
    text = "it may be of earlier inputs: "
    text += "an update is due" if due.update is None else f"update {due.update} is under way"
    if due.commit is not None:
        text += f" since commit {due.commit}, {due.since}"
    return text + (f"; it failed {due.failures} times in a row" if due.failures else "")
