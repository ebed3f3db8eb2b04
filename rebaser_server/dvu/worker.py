"""The other end of `InProcessExecutor`: evaluates what comes on stdin, until that ends.

A frame is its length in eight bytes, then as many bytes; an answer begins with one byte more,
0 before an outcome and 1 before what went wrong.
"""

import os
import sys
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, Final

from rebaser_server.dvu.evaluate import evaluate

LENGTH: Final = 8
DONE: Final = b"\0"
BROKEN: Final = b"\1"


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print is no answer
    blobs: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read, args=(sys.stdin.buffer, blobs), daemon=True).start()
    while True:
        answer = _answer(blobs.get())
        answers.write(len(answer).to_bytes(LENGTH) + answer)
        answers.flush()


def _read(stdin: BinaryIO, blobs: SimpleQueue[bytes]) -> None:
    while len(length := stdin.read(LENGTH)) == LENGTH:
        blobs.put(stdin.read(int.from_bytes(length)))
    os._exit(0)  # the parent is gone, and maybe a function that never returns is running


def _answer(blob: bytes) -> bytes:
    try:
        return DONE + evaluate(blob)
    except Exception as error:  # noqa: BLE001 - for the parent to raise
        return BROKEN + f"{type(error).__name__}: {error}".encode(errors="replace")


if __name__ == "__main__":
    main()
