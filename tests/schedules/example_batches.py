"""What clients ask for: batches on five values that depend on each other."""

import random
from typing import Any

from ulid import ULID

from tests.helpers.batches import computed, function, set_to

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
                function(func_id, code)
                for func_id, code in (
                    (self._sum, "sum"), (self._max, "max"), (self._identity, "identity"),
                )
            ),
            *(
                {"putValue": {"valueId": source, "value": rng.randrange(50)}}
                for source in (self.one, self.two, self.three)
            ),
            computed(self.total, self._sum, values=[self.one, self.two]),
            computed(self.top, self._max, values=[self.total, self.three]),
            computed(self.shown, self._identity, value=self.top),
        ]  # fmt: skip

    def batch(self, rng: random.Random) -> Batch:
        sources = (self.one, self.two, self.three)
        match rng.randrange(8):
            case 0:
                return [function(self._sum, rng.choice(("sum", "product")))]
            case 1:
                chosen = rng.sample(sources, rng.randrange(4))
                return [{"setInputs": {"valueId": self.total, "inputs": {"values": chosen}}}]
            case 2:
                return [set_to(source, rng.randrange(50)) for source in sources]
            case _:
                return [set_to(rng.choice(sources), rng.randrange(50))]
