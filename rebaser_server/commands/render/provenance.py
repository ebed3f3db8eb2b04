"""The output of `rebaser why`: a value, the edits that made it, and what keeps it back."""

import json
from typing import Any, Final

from rebaser_client.reader import Provenance
from rebaser_core.ids import ChangeSet
from rebaser_server.commands.support.deployment import Deployment
from rebaser_server.terminal.lines import say, say_json
from rebaser_server.terminal.tables import Table

_WIDEST: Final = 60
"""Characters of a value that are printed for people."""


async def show_provenance(
    deployment: Deployment,
    change_set: ChangeSet,
    name: str,
    provenance: Provenance,
    *,
    ids: bool,
    as_json: bool,
) -> None:
    """Print it. Edits of other change sets, which a branch has, are shown with their addresses."""
    if as_json:
        say_json(_plain(name, provenance))
        return
    say(_headline(name, provenance))
    addresses = {
        each: await deployment.client.addresses.address_of(ChangeSet(change_set.workspace_id, each))
        for each in dict.fromkeys(edit.change_set_id for edit in provenance.edits)
        if each != change_set.change_set_id
    }
    more = ["request", "trace"] if ids else []
    table = Table("commit", "time", "author", "what", "path", *more)
    for edit in provenance.edits:
        where = addresses.get(edit.change_set_id)
        commit = f"{edit.commit}" if where is None else f"{edit.commit} of {where}"
        its_ids = [str(edit.request), edit.trace or ""] if ids else []
        facts: list[object] = [commit, edit.time, edit.author or ""]
        for _, _, _, what, path in Provenance.rows_of(edit):
            table.add(*facts, what, path, *its_ids)
            facts, its_ids = [""] * len(facts), [""] * len(its_ids)
    if provenance.edits:
        table.show()
    say(*provenance.notes())


def _headline(name: str, provenance: Provenance) -> str:
    value = provenance.value
    if value is None:
        return f"{name} does not exist as of commit {provenance.commit}: it was removed"
    shown = value.name or value.id
    if value.status in ("failed", "blocked"):
        return f"{shown} is {value.status} as of commit {provenance.commit}"
    text = json.dumps(value.value, ensure_ascii=False)
    text = text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."
    pending = ", not computed yet," if value.status == "pending" else ""
    return f"{shown} = {text}{pending} as of commit {provenance.commit}"


def _plain(name: str, provenance: Provenance) -> dict[str, Any]:
    value, waits = provenance.value, provenance.waits
    return {
        "name": name,
        "commit": provenance.commit,
        "value": None if value is None else value.to_wire(),
        "edits": [edit.to_wire() for edit in provenance.edits],
        "omitted": provenance.omitted,
        "older": provenance.older,
        "keptFrom": provenance.kept_from,
        "isWhole": provenance.is_whole,
        "failed": [each.to_wire() for each in provenance.failed],
        "waits": None if waits is None else waits.to_wire(),
    }
