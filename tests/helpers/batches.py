"""Small batches that tests share."""

from typing import Any

from ulid import ULID

Batch = list[dict[str, Any]]


def new_id() -> str:
    return str(ULID())


def put(value_id: str, value: Any) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "value": value}}


def set_to(value_id: str, value: Any) -> dict[str, Any]:
    return {"setValue": {"valueId": value_id, "value": value}}


class ExampleGraph:
    """The graph of the README: `gross` is the sum of `net` and `tax`."""

    def __init__(self) -> None:
        self.net, self.tax, self.gross, self.add = (new_id() for _ in range(4))

    def define(self, net: Any = 1, tax: Any = 2) -> Batch:
        inputs = {"values": [self.net, self.tax]}
        return [
            {"putFunc": {"funcId": self.add, "name": "sum", "runtime": "builtin", "code": "sum"}},
            put(self.net, net),
            put(self.tax, tax),
            {"putValue": {"valueId": self.gross, "funcId": self.add, "inputs": inputs}},
        ]
