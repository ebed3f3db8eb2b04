"""Read a change set without the store: values from any Rebaser, its history from the log."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from rebaser_client.display.frames import Columns, arrow_table, pandas_frame, polars_frame
from rebaser_client.display.html import html_table
from rebaser_client.errors import NoSuchValue
from rebaser_client.log_reader import LogEntry, read_log
from rebaser_client.queries.branch_difference import BranchDifference
from rebaser_client.queries.provenance import Provenance
from rebaser_client.queries.query_sender import QuerySender
from rebaser_client.queries.revert_plan import RevertPlan
from rebaser_core.errors import many
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.jetstream import JetStream
from rebaser_core.queries import (
    DifferenceQuery,
    DifferenceQueryV1,
    DifferenceReply,
    FunctionSnapshot,
    ProvenanceQuery,
    ProvenanceQueryV1,
    ProvenanceReply,
    RevertQuery,
    RevertQueryV1,
    RevertReply,
    ValueSnapshot,
    ValuesQuery,
    ValuesQueryV2,
    ValuesReply,
    ValuesReplyV3,
)
from rebaser_core.subjects import Subjects

_SHOWN: Final = 5
"""Values that the text of a set shows at most."""


class ValueSet(Mapping[str, ValueSnapshot]):
    """Values by id and by name, all of them as of `commit`. Iterating gives ids."""

    def __init__(
        self,
        commit: int,
        values: list[ValueSnapshot],
        missing: list[str],
        *,
        may_be_stale: bool | None,
    ) -> None:
        self.commit = commit
        self.may_be_stale = may_be_stale
        """Whether an update of the change set's computed values was due or running by then: what
        they are may be of earlier inputs. None: a Rebaser of an older release does not say."""
        self.missing = missing
        """Names and ids that were asked for and are not there."""
        self._by_id = {str(value.id): value for value in values}
        self._by_name = {value.name: value for value in values if value.name is not None}

    def __getitem__(self, key: str) -> ValueSnapshot:
        found = self._by_id.get(key)
        return self._by_name[key] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        shown = [f"{v.name or v.id}={v.value!r:.40}" for v in islice(self.values(), _SHOWN)]
        more = ["…"] if len(self) > _SHOWN else []
        listed = ", ".join([*shown, *more])
        return f"<ValueSet of {many(len(self), 'value')} as of commit {self.commit}: {listed}>"

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`, a row for each value. Raises `MissingPackage` without pandas."""
        return pandas_frame(self._columns())

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`, a row for each value. Raises `MissingPackage` without pyarrow."""
        return arrow_table(self._columns())

    def to_polars(self) -> Any:
        """A `polars.DataFrame`. Raises `MissingPackage` without Polars or pyarrow."""
        return polars_frame(self._columns())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for programs that take Arrow. Raises `MissingPackage` without pyarrow."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _columns(self) -> Columns:
        names = ("name", "value", "status", "message", "id")
        return {name: [getattr(value, name) for value in self.values()] for name in names}

    def _repr_html_(self) -> str:
        rows = [(v.name or v.id, v.value, v.status, v.message) for v in self.values()]
        note = f"as of commit {self.commit}" + (", may be stale" if self.may_be_stale else "")
        return html_table(("value", "is", "status", "message"), rows, note)


class ChangeSetReader:
    """Reads one change set. Every call may be cancelled and repeated; none changes anything."""

    def __init__(
        self, js: JetStream, subjects: Subjects, change_set: ChangeSet, content_type: str
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._change_set = change_set
        self._content_type = content_type

    async def values(
        self, *names: str, inputs: int = 0, dependents: int = 0, at: int | None = None
    ) -> ValueSet:
        """The values of these names or ids, or all, and so many levels of what is around them.

        All are as of one commit: `at`, or the last one when the query arrived, so that a client
        that has the reply to a request reads the request's effect.

        Raises:
            Unreachable: no Rebaser answered in time, or all were too busy.
            TooLarge: so many names do not fit into a question.
            ReadRefused: one did, and said why not: the past is not kept so long, or it
                is too much for an answer: fewer at a time, or from the store.
        """
        replies = await self._ask_values(
            which=[*names], inputs=inputs, dependents=dependents, at=at
        )
        values = [value for reply in replies for value in reply.values]
        last = replies[-1]
        return ValueSet(last.commit, values, last.missing, may_be_stale=last.due)

    async def functions(self, *names: str) -> list[FunctionSnapshot]:
        """The functions of these names or ids that there are, or all, as of the last commit.

        Several may have one name.

        Raises:
            Unreachable, TooLarge: as `values`.
            ReadRefused: the Rebaser is of an older release, or they are too much for an answer.
        """
        replies = await self._ask_values(which=[*names], functions=True)
        return [function for reply in replies for function in reply.functions or ()]

    async def _ask_values(self, **fields: Any) -> list[ValuesReplyV3]:
        query = ValuesQueryV2(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            **fields,
        )
        sender = QuerySender(
            self._js,
            ValuesQuery,
            ValuesReply,
            self._content_type,
            lambda reply: reply.error,
            lambda reply: reply.more,
        )
        return await sender.ask(self._subjects.values(self._change_set), query)

    async def log(self, *, after: int = 0, last: int | None = None) -> list[LogEntry]:
        """The requests settled behind commit `after`, or the `last` so many, oldest first."""
        return await read_log(self._js, self._subjects, self._change_set, after=after, limit=last)

    async def why(self, name: str, *, at: int | None = None) -> Provenance:
        """The edits that made the value of this name or id what it is, as of `at` or now.

        What made it before the commits that are kept is not known: see `Provenance.older`.

        Raises:
            NoSuchValue: there is none, nor was there one among the commits that are kept.
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: one did, and said why not: the past is not kept so long.
        """
        query = ProvenanceQueryV1(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            value=name,
            at=at,
        )
        sender = QuerySender(
            self._js,
            ProvenanceQuery,
            ProvenanceReply,
            self._content_type,
            lambda reply: None if reply.is_missing else reply.error,
        )
        [reply] = await sender.ask(self._subjects.provenance(self._change_set), query)
        if reply.is_missing:
            raise NoSuchValue(reply.error or f"there is no value {name!r}")
        return Provenance.of(reply)

    async def difference(self, *, computed: bool = False) -> BranchDifference:
        """What applying the branch would change in head, as of its last commit and head's.

        With `computed`, the results that differ as well, as far as they are computed.

        Raises:
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: one did, and said why not: the change set is no branch, no Rebaser has
                taken it up yet, or the difference is too large for an answer.
        """
        query = DifferenceQueryV1(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            computed=computed,
        )
        sender = QuerySender(
            self._js, DifferenceQuery, DifferenceReply, self._content_type, lambda r: r.error
        )
        [reply] = await sender.ask(self._subjects.differences(self._change_set), query)
        return BranchDifference.of(reply)

    async def plan_revert(self, commit: int, *, force: bool = False) -> RevertPlan:
        """The batch that undoes `commit`; enqueue its `updates` to have it done.

        What a later commit changed again stays, and is in `skipped`; with `force` it is undone.

        Raises:
            Unreachable: no Rebaser answered in time, or only ones of an older release.
            ReadRefused: one did, and said why not: there is no such commit, it changed no
                definition, or the past is not kept so long.
        """
        query = RevertQueryV1(
            id=RequestId(),
            workspace_id=self._change_set.workspace_id,
            change_set_id=self._change_set.change_set_id,
            commit=commit,
            force=force,
        )
        sender = QuerySender(
            self._js, RevertQuery, RevertReply, self._content_type, lambda r: r.error
        )
        [reply] = await sender.ask(self._subjects.reverts(self._change_set), query)
        return RevertPlan(commit, reply.now, reply.updates, [*map(str, reply.skipped)])
