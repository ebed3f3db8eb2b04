"""Small batches that tests share."""

from typing import Any

from ulid import ULID

from rebaser_core.updates import BatchLimits

Batch = list[dict[str, Any]]


def limits(*, value_bytes: int = 8 << 20, **fixed: int) -> BatchLimits:
    """Limits of which also those differ that are fixed."""
    return type("OtherLimits", (BatchLimits,), fixed)(value_bytes=value_bytes)


def new_id() -> str:
    return str(ULID())


def put(value_id: str, value: Any) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "value": value}}


def set_to(value_id: str, value: Any) -> dict[str, Any]:
    return {"setValue": {"valueId": value_id, "value": value}}


def function(func_id: str, code: str, runtime: str = "builtin") -> dict[str, Any]:
    return {"putFunc": {"funcId": func_id, "name": code, "runtime": runtime, "code": code}}


def computed(value_id: str, func_id: str, **inputs: Any) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "funcId": func_id, "inputs": inputs}}


class ExampleGraph:
    """The graph of the README: `gross` is the sum of `net` and `tax`."""

    def __init__(self) -> None:
        self.net, self.tax, self.gross, self.add = (new_id() for _ in range(4))

    def define(self, net: Any = 1, tax: Any = 2) -> Batch:
        return [
            function(self.add, "sum"),
            put(self.net, net),
            put(self.tax, tax),
            computed(self.gross, self.add, values=[self.net, self.tax]),
        ]
