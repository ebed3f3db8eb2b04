"""Computes the values of one blob: pure, in whichever process it is called."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import cbor2

from rebaser_server.dvu.blob import Blob, Shape
from rebaser_server.dvu.errors import FunctionMissing
from rebaser_server.dvu.functions import resolve
from rebaser_server.dvu.json_data import NotJson, read_only, same

MAX_MESSAGE: Final = 1000
"""Characters of a failed value's message."""

OK: Final = "ok"
FAILED: Final = "failed"
BLOCKED: Final = "blocked"

FAILED_RUNTIME: Final = "failed"
"""Of a function that stands in for one that ends its evaluator; the code is the message."""

Result = tuple[str, str, Any]
"""Value id and `"ok"`, value | `"failed"`, message | `"blocked"`, id of the first input that is
failed or blocked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a blob."""

    recomputed: int
    """Functions called, or found missing or blocked."""
    results: list[Result]
    """Only values that are not what they were, in topological order."""


def decode_outcome(data: bytes) -> Outcome:
    recomputed, results = cbor2.loads(data)
    return Outcome(recomputed, list(map(tuple, results)))


def evaluate(blob: bytes) -> bytes:
    """The `Outcome` of an encoded `Blob`, encoded.

    A function that raises fails its value and blocks what depends on it, and nothing else.
    Values are computed if they are forced or an input comes out changed, which is to say:
    with another value, or with one where there was none, or the other way round.
    """
    return cbor2.dumps(_Evaluation(Blob.decode(blob)).run())


class _Absent:
    """Stands in a cell for the value that a failed or blocked input does not have."""

    __slots__ = ("id",)

    def __init__(self, value_id: str) -> None:
        self.id = value_id


def _cell(value_id: str, value: Any) -> Any:
    try:
        return read_only(value)
    except NotJson:  # stored before there was this limit: blocks its dependents, not the blob
        return _Absent(value_id)


class _Evaluation:
    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._functions = [_callable(runtime, code) for runtime, code in blob.functions]
        self._cells = [
            _cell(value_id, before) if status == OK else _Absent(value_id)
            for value_id, status, before in zip(blob.ids, blob.statuses, blob.before, strict=True)
        ] + [
            _cell(value_id, value) if known else _Absent(value_id)
            for value_id, known, value in blob.constants
        ]

    def run(self) -> tuple[int, list[Result]]:
        blob, cells = self._blob, self._cells
        changed = [False] * len(cells)
        widths = [sum(1 if n is None else n for _, n in shape) for _, shape in blob.signatures]
        results: list[Result] = []
        recomputed = start = 0
        columns = zip(blob.ids, blob.calls, blob.forced, blob.statuses, blob.before, strict=True)
        for index, (value_id, call, forced, status_before, before) in enumerate(columns):
            refs = blob.refs[start : start + widths[call]]
            start += widths[call]
            if not forced and not any(map(changed.__getitem__, refs)):
                continue
            recomputed += 1
            status, outcome = self._compute(call, refs)
            if status != status_before or not same(outcome, before):
                results.append((value_id, status, outcome))
                changed[index] = OK in (status, status_before)
                cells[index] = outcome if status == OK else _Absent(value_id)
        return recomputed, results

    def _compute(self, call: int, refs: list[int]) -> tuple[str, Any]:
        function, shape = self._blob.signatures[call]
        given = list(map(self._cells.__getitem__, refs))
        for cell in given:
            if type(cell) is _Absent:
                return BLOCKED, cell.id
        try:
            return OK, read_only(self._functions[function](**_arguments(shape, given)))
        except FunctionMissing as error:
            return FAILED, _message(str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it fails its value alone
            return FAILED, _message(_described(error))


def _arguments(shape: list[Shape], given: list[Any]) -> dict[str, Any]:
    arguments = {}
    start = 0
    for name, count in shape:
        if count is None:
            arguments[name] = given[start]
            start += 1
        else:
            arguments[name] = given[start : start + count]
            start += count
    return arguments


def _callable(runtime: str | None, code: str) -> Callable[..., Any]:
    try:
        if runtime is None:
            raise FunctionMissing(f"function {code} does not exist")
        if runtime == FAILED_RUNTIME:
            raise FunctionMissing(code)
        return resolve(runtime, code)
    except FunctionMissing as error:
        return partial(_missing, str(error))


def _missing(message: str, /, **_arguments: Any) -> Any:
    raise FunctionMissing(message)


def _described(error: BaseException) -> str:
    if isinstance(error, NotJson):
        return f"the result cannot be a value: {error}"
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception's own code is a function's, too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _message(text: str) -> str:
    text = text.encode(errors="replace").decode()
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
