"""The other end of `ChildProcessExecutor`: executes the tasks that come on stdin, until that ends.

A question is the arguments of `task_protocol.execute`, pickled; an answer is what that returns. A
frame is its length in eight bytes, then as many bytes; an answer begins with one byte more, 0
before what was done and 1 before what went wrong.
"""

import os
import pickle
import signal
import sys
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, Final

from rebaser_server.compute.evaluate.task_protocol import execute
from rebaser_server.compute.failure_text import describe

LENGTH: Final = 8
DONE: Final = b"\0"
BROKEN: Final = b"\1"


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what functions print is no answer
    questions: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_questions, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        answer = _answer(questions.get())
        answers.write(len(answer).to_bytes(LENGTH) + answer)
        answers.flush()


def _read_questions(stdin: BinaryIO, questions: SimpleQueue[bytes]) -> None:
    while len(length := stdin.read(LENGTH)) == LENGTH:
        questions.put(stdin.read(int.from_bytes(length)))
    # The parent is gone, and maybe a function that never returns is running, here or in a child.
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _answer(question: bytes) -> bytes:
    try:
        return DONE + execute(*pickle.loads(question))  # noqa: S301 - from our parent
    except BaseException as error:  # noqa: BLE001 - for the parent to raise
        return BROKEN + describe(error).encode(errors="replace")


if __name__ == "__main__":
    main()
