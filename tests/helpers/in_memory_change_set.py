"""A change set without streams: requests, updates of dependents, checkpoints and restarts.

The rules of the protocol are written down here once more, in a few lines each; the graph,
the plan, the evaluation and the stored rows are the real ones.
"""

from typing import Any

import pyarrow as pa

from rebaser_core.commits import CommitV2, ControlState, DvuClaim, RequestOutcome, SettledRequest
from rebaser_core.ids import RequestId
from rebaser_core.messages import Inline, InlineBatch
from rebaser_core.updates import AnyUpdate, SetComputed
from rebaser_server.commit_log.state import Checkpoint, State
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.functions.builtin import BUILTINS
from rebaser_server.compute.json_values import read_only
from rebaser_server.compute.plan import plan
from rebaser_server.compute.results import decode_result
from rebaser_server.graph_application.content import GraphContent, graph_of
from rebaser_server.store.checkpoints import take_changes
from rebaser_server.store.row_digest import heads_in
from rebaser_server.store.table_schema import checkpoint_record
from rebaser_server.values.bulk_rebase import RebaseResult
from rebaser_server.values.graph import Graph
from rebaser_server.values.rebase import rebase
from tests.helpers.reference_model import plain
from tests.helpers.table_rows import graph_from_table


class ChangeSet:
    """What a Rebaser, its log and its store know of one change set."""

    def __init__(self) -> None:
        self.state = State(GraphContent())
        self.result: tuple[DvuClaim, list[SetComputed]] | None = None
        """Of the last update of dependents, on its way."""
        self._lines: list[CommitV2] = []
        """Since the last checkpoint."""
        self._table: pa.Table | None = None

    @property
    def graph(self) -> Graph:
        return graph_of(self.state)

    def request(self, updates: list[AnyUpdate]) -> RebaseResult:
        sequence = self.state.control.last_sequence + 1
        done = rebase(self.graph, sequence, updates)
        self._commit(done, sequence, **({"dirty_sequence": sequence} if done.dirty else {}))
        return done

    def start_update(self) -> None:
        """Claim, plan and evaluate (D2); the claim of an update still under way is overwritten."""
        claim = DvuClaim(id=RequestId(), covers=self.state.control.dirty_sequence)
        self._write(claim=claim)
        blobs = plan(self.graph, slots=2, small=0).units
        outcomes = [decode_result(evaluate(blob.encode())) for blob in blobs]
        self.result = claim, [as_update(r) for outcome in outcomes for r in outcome.value_results]

    def finish_update(self) -> RebaseResult | None:
        """Apply the result that is on its way, if its claim stands (D5)."""
        if self.result is None:
            return None
        (claim, updates), self.result = self.result, None
        sequence = self.state.control.last_sequence + 1
        if self.state.control.claim != claim:
            self._write(last_sequence=sequence)
            return None
        done = rebase(self.graph, sequence, updates, claim.covers)
        self._commit(done, sequence, claim.covers, claim=None, clean_sequence=claim.covers)
        return done

    def checkpoint(self) -> None:
        """Store what changed since the last one."""
        whole = self._table is None
        changes = take_changes(self.graph, self.state.commit, self.state.metadata(), whole=whole)
        rows = changes.sealed().reader().read_all()
        self._table = rows if whole else pa.concat_tables([rows, self._table])
        self._lines.clear()

    def restart(self) -> None:
        """Lose what is in memory, and any result on its way."""
        self.result = None
        if self._table is None:
            self.state = State(GraphContent())
        else:
            head = max(heads_in(self._table))
            content = GraphContent(graph_from_table(self._table))
            self.state = State.from_checkpoint(
                Checkpoint(head.commit, checkpoint_record(head), content)
            )
        for line in self._lines:
            settled = line.settled
            if settled is not None and isinstance(settled.updates, Inline):
                updates = settled.updates.inline.updates
                done = rebase(self.graph, settled.sequence, updates, settled.covers)
                assert not done.corrections
            self.state.advance(line, line.previous + 1)

    def update_until_right(self) -> None:
        while self.state.control.dvu_due:
            self.start_update()
            self.finish_update()

    def _commit(
        self, done: RebaseResult, sequence: int, covers: int | None = None, **changes: Any
    ) -> None:
        settled = SettledRequest(
            id=RequestId(),
            sequence=sequence,
            outcome=RequestOutcome.APPLIED,
            updates=Inline(inline=InlineBatch(updates=done.updates)),
            corrections=tuple(done.corrections),
            covers=covers,
        )
        self._write(settled, last_sequence=sequence, **changes)

    def _write(self, settled: SettledRequest | None = None, **changes: Any) -> None:
        head: ControlState = self.state.control.model_copy(update=changes)
        line = CommitV2(id=RequestId(), previous=self.state.commit, control=head, settled=settled)
        self.state.advance(line, self.state.commit + 1)
        self._lines.append(line)


def as_update(result: tuple[str, str, Any]) -> SetComputed:
    value_id, status, what = result
    field = {"ok": "value", "failed": "failed", "blocked": "blocked_by"}[status]
    return SetComputed(value_id=value_id, **{field: what})


def recomputed(graph: Graph) -> dict[str, tuple[str, Any]]:
    """By id of a dependent value its status and value or blocker, from nothing but the sources."""
    known: dict[str, tuple[str, Any]] = {}

    def compute(value_id: str) -> tuple[str, Any]:
        if value_id not in known:
            value = graph.values[value_id]
            known[value_id] = ("ok", value.value) if value.func_id is None else call(value)
        return known[value_id]

    def call(value: Any) -> tuple[str, Any]:
        for input_id in value.input_ids():
            if compute(input_id)[0] != "ok":
                return "blocked", input_id
        arguments = {
            argument: compute(target)[1]
            if isinstance(target, str)
            else [compute(input_id)[1] for input_id in target]
            for argument, target in value.inputs.items()
        }
        try:
            return "ok", read_only(BUILTINS[graph.funcs[value.func_id].code](**arguments))
        except Exception:  # noqa: BLE001 - a missing function as well as one that raises
            return "failed", None

    return {
        value_id: (status, plain(what))
        for value_id, value in graph.values.items()
        if value.func_id is not None
        for status, what in [compute(value_id)]
    }


def stored(graph: Graph) -> dict[str, tuple[str, Any]]:
    """The same, as it stands in the graph."""
    return {
        value.id: (
            value.status.value,
            plain(value.message if value.status == "blocked" else value.value),
        )
        for value in graph.values.values()
        if value.func_id is not None
    }
