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


class Sum:
    """Two sources and their sum."""

    def __init__(self) -> None:
        self.one, self.two, self.total, self.func = (new_id() for _ in range(4))

    def define(self, one: Any = 1, two: Any = 2) -> Batch:
        inputs = {"values": [self.one, self.two]}
        return [
            {"putFunc": {"funcId": self.func, "name": "sum", "runtime": "builtin", "code": "sum"}},
            put(self.one, one),
            put(self.two, two),
            {"putValue": {"valueId": self.total, "funcId": self.func, "inputs": inputs}},
        ]
