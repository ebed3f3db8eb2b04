"""The output of commands that enqueue and wait: progress, outcome, failures.

A command waits for its request's commit and for the update behind it, with a progress bar, and
explains a long wait. Its outcome, as text, JSON and exit code, names the values that failed, and
those that the request affected.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rebaser_client.outcomes import MissingResults, Progress, Values, read_missing_results
from rebaser_client.plan import read_named
from rebaser_client.requests import Updates
from rebaser_core.errors import ClientError, RebaserError, many
from rebaser_core.ids import ChangeSet, RequestId
from rebaser_core.messages import (
    Correction,
    EnqueueUpdatesResponseV3,
    ErrorStatus,
    Inline,
    SuccessStatusV3,
)
from rebaser_server.commands.support.arguments import Exit
from rebaser_server.commands.support.deployment import Deployment, pause_texts, warn_if_paused
from rebaser_server.commands.support.value_source import reason
from rebaser_server.terminal.lines import say, say_result
from rebaser_server.terminal.tables import ProgressBar, progress_bar

if TYPE_CHECKING:
    from rebaser_core.queries import ValueSnapshot

_LISTED: Final = 5
"""Maximum number of failed values that are named for people."""

_NOT_INSTALLED: Final = "is installed here"
"""Part of the message of a value whose function is missing: "no Python function … is …"."""


class FailuresUnknown(RebaserError):
    """The request is committed and computed, but no Rebaser replied whether values failed."""


@dataclass(frozen=True, slots=True)
class Failures:
    """The values that failed, as of the last commit, in the words of commands."""

    missing: MissingResults
    address: str
    """Address of the change set, for the next command."""
    standing: Values
    """Values that the command names, and that had no result before it."""

    @property
    def affected(self) -> int:
        return self.missing.failed.total

    @property
    def stand(self) -> bool:
        """Whether a value that the command names or changed has no result now."""
        missing = self.missing
        return bool(missing.failed or missing.affected_blocked or self.standing)

    def plain(self) -> dict[str, Any]:
        return {
            "failed": self.affected + self.missing.failed_before.total,
            "blocked": self.missing.blocked.total,
            "failedByThis": [_plain(value) for value in self.missing.failed],
            "standing": [_plain(value) for value in self.standing],
        }

    def lines(self) -> list[str]:
        missing, count = self.missing, self.affected
        lines = self._listed(missing.failed)
        if count:
            blocked = missing.blocked.total
            lines.insert(0, f"{many(count, 'value')} failed by this, {blocked:,} blocked:")
        if count > _LISTED:
            lines.append(f"  and {count - _LISTED:,} more: `rebaser dvu status {self.address}`")
        standing = self.standing
        if standing:
            found = many(len(standing), "value")
            lines.append(f"{found} of those named had no result before, and have none:")
            lines += self._listed(standing)
        if missing.failed_before:
            others = "others" if count else "of this change set"
            count = missing.failed_before.total
            lines.append(f"{many(count, 'value')} {others} had failed before")
        return lines + self._next_step()

    def _listed(self, values: Values) -> list[str]:
        missing = self.missing
        every = (*missing.failed, *missing.failed_before, *missing.blocked)
        names = {value.id: value.name for value in every}
        return [
            f"  {value.name or value.id}: {reason(value.status, value.message, names)}"
            for value in values[:_LISTED]
        ]

    def _next_step(self) -> list[str]:
        if not self.stand:
            return []
        every = (*self.missing.failed, *self.missing.failed_before)
        is_missing = any(_NOT_INSTALLED in (value.message or "") for value in every)
        cause = "`pip install` the function's package" if is_missing else "remove the cause"
        return [f"{cause}, then: `rebaser dvu run {self.address} --failed`"]


async def failures(
    deployment: Deployment,
    change_set: ChangeSet,
    commit: int | None,
    changed: Iterable[str] = (),
    *,
    named: Iterable[str] = (),
    sent: bool = True,
) -> Failures:
    """The failed values, once no update is due, split by whether the request affected them.

    `commit` is the request's; without one, all that failed did by this if anything was `sent`, else
    before. `changed`: names or ids of values and functions that the request changed, and its batch
    does not name. `named`: names or ids of further values that the command names. A Rebaser
    answers, so the command needs no access to the store.

    Raises:
        FailuresUnknown: no Rebaser answered; the request is committed and computed.
    """
    handle, names = deployment.client.change_set(*change_set), {*named}
    try:
        missing = await read_missing_results(handle, commit, changed)
        if not sent:
            missing = MissingResults(Values(), missing.failed, missing.blocked)
        before: Iterable[ValueSnapshot] = (*missing.failed_before, *missing.blocked)
        if names and missing.failed_before.total + missing.blocked.total > len([*before]):
            before = await read_named(handle, sorted(names))  # some are not listed
    except ClientError as error:
        raise FailuresUnknown(
            f"all is computed, but it is unknown whether values failed: {error}; "
            "`rebaser dvu status ADDRESS` reads that from the store"
        ) from error
    standing = Values(
        value
        for value in before
        if value.status in ("failed", "blocked") and not names.isdisjoint((value.id, value.name))
    )
    address = shlex.quote(await deployment.client.addresses.address_of(change_set))
    return Failures(missing, address, standing)


def _plain(value: "ValueSnapshot") -> dict[str, Any]:
    return {"id": value.id, "name": value.name, "message": value.message}


@dataclass(frozen=True)
class _RequestResult:
    response: EnqueueUpdatesResponseV3
    sent: int
    failures: Failures | None = None
    """Failures; None: the command did not wait for the values that depend on the request."""
    strict: bool = False

    @property
    def code(self) -> Exit:
        if isinstance(self.response.status, ErrorStatus):
            return Exit.FAILED
        if self._all_left_out or (self.strict and self._corrections):
            return Exit.CORRECTED
        if self.failures is not None and self.failures.stand:
            return Exit.VALUES_FAILED
        return Exit.OK

    @property
    def _corrections(self) -> tuple[Correction, ...]:
        status = self.response.status
        return () if isinstance(status, ErrorStatus) else status.success.corrections

    @property
    def _all_left_out(self) -> bool:
        """Whether Rebaser left out all updates."""
        status = self.response.status
        if not self._corrections or not isinstance(status, SuccessStatusV3):
            return False
        performed = status.success.updates_performed
        return isinstance(performed, Inline) and not performed.inline.updates

    def plain(self) -> dict[str, Any]:
        """The response in its wire format and, if the command waited, the failed `values`."""
        plain: dict[str, Any] = self.response.model_dump(mode="json", by_alias=True)
        if self.failures is not None:
            plain["values"] = self.failures.plain()
        return plain

    def lines(self) -> list[str]:
        request, status = self.response.id, self.response.status
        if isinstance(status, ErrorStatus):
            return [f"request {request} failed: {status.error.message}"]
        commit = status.success.commit
        lines = [f"request {request} is commit {commit}; {self._how()}", *self._corrected()]
        return lines + (self.failures.lines() if self.failures is not None else [])

    def _how(self) -> str:
        if self._all_left_out:
            return "Rebaser left out all updates, and changed nothing"
        if self.failures is None:
            return "the values that depend on it follow"
        return "its values are computed" if self.failures.stand else "its values are up to date"

    def _corrected(self) -> list[str]:
        corrections = self._corrections
        if not corrections:
            return []
        updates = len({correction.index for correction in corrections})
        return [
            f"{updates:,} of {many(self.sent, 'update')} did not fit; Rebaser changed or left out:",
            *(f"  update {each.index}: {each.code}: {each.detail}" for each in corrections),
        ]


T = TypeVar("T")

_INTERVAL: Final = 2.0  # seconds until a wait is explained, and between two explanations


class _WaitText:
    """Explains a wait beside a progress bar."""

    def __init__(self, deployment: Deployment, change_set: ChangeSet, bar: ProgressBar) -> None:
        self._deployment = deployment
        self._change_set = change_set
        self._bar = bar
        self._start = asyncio.get_running_loop().time()

    async def until(self, reply: Awaitable[T]) -> T:
        waiting = asyncio.ensure_future(reply)
        try:
            while not (await asyncio.wait([waiting], timeout=_INTERVAL))[0]:
                await self._describe("waiting for its commit", may_be_paused=True)
            return waiting.result()
        finally:
            waiting.cancel()

    async def show(self, progress: Progress) -> None:
        if progress.total is not None:
            self._bar.draw(progress.done, progress.total)
        if self._elapsed >= _INTERVAL:
            await self._describe(describe(progress), may_be_paused=progress.total is None)

    @property
    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time() - self._start

    async def _describe(self, text: str, *, may_be_paused: bool) -> None:
        if may_be_paused and self._bar.is_seen:
            found = await pause_texts(self._deployment, self._change_set, waiting=text)
            text = next(iter(found), text)
        self._bar.describe(f"{text} ({self._elapsed:.0f} s)")


def describe(progress: Progress) -> str:
    if progress.total is None:
        return "waiting for a Rebaser to begin the update"
    text = f"computing {progress.done:,} of {many(progress.total, 'value')}"
    return text if progress.done else f"{text}; Spark may be starting"


async def follow(
    deployment: Deployment,
    change_set: ChangeSet,
    updates: Updates,
    *,
    as_json: bool,
    request_id: RequestId | None = None,
    computed: bool = True,
    strict: bool = False,
    named: Iterable[str] = (),
) -> Exit:
    """Enqueue, await the reply and, if `computed`, the update that follows; print the outcome.

    The exit code tells whether Rebaser rejected the request, values that it affects or that are
    `named` have no result, or all updates were left out; with `strict`, whether any was corrected.
    """
    await warn_if_paused(deployment, change_set)
    failed = None
    with progress_bar("enqueue") as bar:
        request_id, reply = await deployment.client.enqueue_updates_with_reply(
            *change_set, updates, request_id=request_id
        )
        bar.describe("waiting for its commit")
        response = await _WaitText(deployment, change_set, bar).until(reply)
        if computed and not isinstance(response.status, ErrorStatus):
            commit = response.status.success.commit or 0
            await _until_computed(deployment, change_set, commit, bar)
            failed = await failures(deployment, change_set, commit, named=named)
    result = _RequestResult(response, len(updates), failed, strict=strict)
    say_result(result.plain(), *result.lines(), as_json=as_json)
    return result.code


async def standing(
    deployment: Deployment, change_set: ChangeSet, named: Iterable[str], *, as_json: bool
) -> Exit:
    """Wait until nothing is left to compute, without sending; print values without a result.

    The exit code tells whether a value that is `named` failed or is blocked.
    """
    await until_computed(deployment, change_set, None)
    failed = await failures(deployment, change_set, None, named=named, sent=False)
    if not as_json:
        say(*failed.lines())
    return Exit.VALUES_FAILED if failed.stand else Exit.OK


async def until_computed(deployment: Deployment, change_set: ChangeSet, commit: int | None) -> None:
    """Return once all that the commit, or the last one, left to compute is computed; show a bar."""
    with progress_bar("dependent values update") as bar:
        await _until_computed(deployment, change_set, commit, bar)


async def _until_computed(
    deployment: Deployment, change_set: ChangeSet, commit: int | None, bar: ProgressBar
) -> None:
    bar.describe("dependent values update")
    text = _WaitText(deployment, change_set, bar)
    async for progress in deployment.client.change_set(*change_set).progress(commit):
        await text.show(progress)
