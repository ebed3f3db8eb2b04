"""What clients ask for: batches on five values that depend on each other."""

import random
from typing import Any

from ulid import ULID

Batch = list[dict[str, Any]]


class Sheet:
    """The values of one change set: `top` depends on `total`, and `shown` on `top`."""

    def __init__(self, rng: random.Random) -> None:
        ids = [str(ULID.from_int(rng.getrandbits(127))) for _ in range(9)]
        self.one, self.two, self.three, self.total, self.top, self.shown = ids[:6]
        self._sum, self._max, self._identity = ids[6:]

    def define(self, rng: random.Random) -> Batch:
        return [
            *(
                _func(func_id, code)
                for func_id, code in (
                    (self._sum, "sum"), (self._max, "max"), (self._identity, "identity"),
                )
            ),
            *(
                {"putValue": {"valueId": source, "value": rng.randrange(50)}}
                for source in (self.one, self.two, self.three)
            ),
            _computed(self.total, self._sum, values=[self.one, self.two]),
            _computed(self.top, self._max, values=[self.total, self.three]),
            _computed(self.shown, self._identity, value=self.top),
        ]  # fmt: skip

    def batch(self, rng: random.Random) -> Batch:
        sources = (self.one, self.two, self.three)
        match rng.randrange(8):
            case 0:
                return [_func(self._sum, rng.choice(("sum", "product")))]
            case 1:
                chosen = rng.sample(sources, rng.randrange(4))
                return [{"setInputs": {"valueId": self.total, "inputs": {"values": chosen}}}]
            case 2:
                return [_set(source, rng.randrange(50)) for source in sources]
            case _:
                return [_set(rng.choice(sources), rng.randrange(50))]


def _set(value_id: str, value: Any) -> dict[str, Any]:
    return {"setValue": {"valueId": value_id, "value": value}}


def _func(func_id: str, code: str) -> dict[str, Any]:
    return {"putFunc": {"funcId": func_id, "name": code, "runtime": "builtin", "code": code}}


def _computed(value_id: str, func_id: str, **inputs: Any) -> dict[str, Any]:
    return {"putValue": {"valueId": value_id, "funcId": func_id, "inputs": inputs}}
