"""What a process does beside its work: it looks for garbage."""

import subprocess
import sys

_PROGRAM = """
import asyncio, gc, weakref
from contextlib import suppress
from rebaser_server.runtime.memory import collect_rarely
from rebaser_server.service import composition
from tests.helpers.eventually import eventually

class Node:
    pass

def old_garbage():
    node = Node()
    node.itself = node
    for generation in range(2):
        gc.collect(generation)
    return weakref.ref(node)

async def main():
    collect_rarely()
    begins = asyncio.Event()
    begins.set()
    looking = asyncio.create_task(composition.collect_garbage(begins, every=0.01))
    await eventually(lambda: gc.get_freeze_count() > 0)
    for large in {batches}:
        batch = [[] for _ in range(large)]
        gone = old_garbage()
        await eventually(lambda: gone() is None)
        looking.cancel()
    with suppress(asyncio.CancelledError):
        await looking

asyncio.run(main())
"""


def _run(*batches: int) -> None:
    program = _PROGRAM.replace("{batches}", str([*batches]))
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


def test_garbage_that_became_old_is_found() -> None:
    _run(0)


def test_garbage_that_became_old_is_found_at_last_beside_a_large_batch() -> None:
    _run(2_000_000)
