"""Random stories of a head and its branch, in this process or, as a program, in another."""

import random
import sys

from rebaser_core.updates import (
    AnyUpdate,
    PutFunc,
    PutValue,
    RemoveFunc,
    RemoveValue,
    SetInputs,
    SetValue,
)
from rebaser_server.values.edits import edits_to_json
from tests.helpers.checkpoint_writer import ulid
from tests.helpers.in_memory_branch import Branch, Head
from tests.helpers.replay import encoded

VALUES = [ulid(number) for number in range(20)]
FUNCS = [ulid(number) for number in range(100, 104)]


def update(chance: random.Random) -> AnyUpdate:
    value_id, func_id = chance.choice(VALUES), chance.choice(FUNCS)
    inputs = {"values": chance.sample(VALUES, chance.randrange(4))}
    name = chance.choice([None, None, "a", "b", "c"])
    kinds = [
        lambda: PutValue(value_id=value_id, name=name, value=chance.randrange(3)),
        lambda: PutValue(value_id=value_id, name=name, func_id=func_id, inputs=inputs),
        lambda: SetValue(value_id=value_id, value=chance.randrange(3)),
        lambda: SetInputs(value_id=value_id, inputs=inputs),
        lambda: RemoveValue(value_id=value_id),
        lambda: PutFunc(func_id=func_id, name="f", runtime="builtin", code=chance.choice("xy")),
        lambda: RemoveFunc(func_id=func_id),
    ]
    return chance.choices(kinds, weights=[4, 5, 4, 3, 2, 2, 1])[0]()


def story(seed: int) -> bytes:
    """All that comes of one."""
    chance, head, told = random.Random(seed), Head(), b""
    head.request([update(chance) for _ in range(30)])
    branch = Branch(head)
    for _ in range(12):
        batch = [update(chance) for _ in range(chance.randrange(6))]
        if chance.random() < 0.5:
            told += encoded(head.request(batch).updates)
        else:
            told += encoded(branch.request(batch).updates)
        if chance.random() < 0.5:
            told += encoded(branch.catch_up()) + encoded(branch.difference())
    return told + repr(edits_to_json(branch.edits, branch.graph)).encode()


def stories() -> bytes:
    return b"".join(map(story, range(60)))


if __name__ == "__main__":
    sys.stdout.buffer.write(stories())
