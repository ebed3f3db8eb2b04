"""What clients ask for: batches on a few values that depend on each other, drawn from a seed."""

import random
from typing import Any

from ulid import ULID

from tests.chaos.tables import QuerySheet
from tests.helpers.batches import computed, function, put, set_to

Batch = list[dict[str, Any]]

LARGE = 520  # updates: more than travel inside a request
SLOW = 0.4  # seconds that one of the functions takes


def new_id(rng: random.Random) -> str:
    return str(ULID.from_int(rng.getrandbits(127)))


class Values:
    """The values of one change set, and what may be asked of them."""

    def __init__(self, rng: random.Random, *, tables: bool = False) -> None:
        """`tables`: whether some are tables, half of all batches about them."""
        self._sheet = QuerySheet(rng) if tables else None
        ids = [new_id(rng) for _ in range(16)]
        self.sources, self.divisor, self.wait, self.spare = ids[:3], ids[3], ids[4], ids[5]
        self.total, self.top, self.ratio, self.after, self.slow, self.seen = ids[6:12]
        self._funcs = dict(zip(("sum", "max", "divide", "identity"), ids[12:], strict=True))
        self._slow_func, self._crash_func, self.fragile = (new_id(rng) for _ in range(3))
        self._count_func = new_id(rng)
        self._counted_func, self.counted = new_id(rng), new_id(rng)
        self._many = [new_id(rng) for _ in range(LARGE)]

    def define(self, rng: random.Random) -> Batch:
        funcs = self._funcs
        return [
            *(function(func_id, code) for code, func_id in funcs.items()),
            function(self._slow_func, "chaos-slow", "python"),
            function(self._count_func, "count"),
            function(self._crash_func, "chaos-crash", "python"),
            function(self._counted_func, "chaos-counted", "python"),
            *(put(source, rng.randrange(50)) for source in (*self.sources, self.spare)),
            put(self.divisor, 1 + rng.randrange(4)),
            put(self.wait, SLOW),
            computed(self.total, funcs["sum"], values=self.sources[:2]),
            computed(self.top, funcs["max"], values=[self.total, self.sources[2], self.spare]),
            computed(self.ratio, funcs["divide"], left=self.total, right=self.divisor),
            computed(self.after, funcs["identity"], value=self.ratio),
            computed(self.fragile, self._crash_func, value=self.sources[0]),
            computed(self.counted, self._counted_func, value=self.divisor),
            computed(self.slow, self._slow_func, value=self.total, seconds=self.wait),
            computed(self.seen, self._count_func, values=[*self.sources, self.slow]),
            *(self._sheet.define(rng) if self._sheet else ()),
        ]

    def batch(self, rng: random.Random) -> Batch:
        if self._sheet and rng.random() < 0.5:
            return self._sheet.batch(rng)
        return rng.choices(
            (self.change, self._set_some, self._rewire, self._spare, self._redefine,
             self._misfits, self._large, self.define),
            (60, 15, 8, 6, 5, 4, 1, 1),
        )[0](rng)  # fmt: skip

    def change(self, rng: random.Random) -> Batch:
        """Of one value."""
        if rng.random() < 0.2:
            return [set_to(self.divisor, rng.randrange(3))]  # 0 fails its quotient
        return [set_to(rng.choice(self.sources), rng.randrange(50))]

    def _set_some(self, rng: random.Random) -> Batch:
        return [set_to(source, rng.randrange(50)) for source in self.sources]

    def _rewire(self, rng: random.Random) -> Batch:
        chosen = rng.sample(self.sources, rng.randrange(4))
        return [{"setInputs": {"valueId": self.total, "inputs": {"values": chosen}}}]

    def _spare(self, rng: random.Random) -> Batch:
        if rng.random() < 0.5:
            return [{"removeValue": {"valueId": self.spare}}]
        names = {"values": [self.total, self.sources[2], self.spare]}
        return [
            put(self.spare, rng.randrange(99)),
            computed(self.top, self._funcs["max"], **names),
        ]

    def _redefine(self, rng: random.Random) -> Batch:
        func_id = self._funcs["sum"]
        if rng.random() < 0.2:
            return [{"removeFunc": {"funcId": func_id}}]
        return [function(func_id, rng.choice(("sum", "product", "max")))]

    def _misfits(self, rng: random.Random) -> Batch:
        """Updates that are corrected away, beside one that is not."""
        missing = new_id(rng)
        return [
            set_to(missing, 1),
            set_to(self.total, -1),
            {"setInputs": {"valueId": self.seen, "inputs": {"values": [missing, self.slow]}}},
        ]

    def _large(self, rng: random.Random) -> Batch:
        return [put(value_id, rng.randrange(9)) for value_id in self._many]
