"""The other end of `WorkerProcess`: answers the questions that come on stdin, until that ends.

A question is a callable without arguments, pickled; an answer is the bytes that it returns. A frame
is a number of eight bytes, its length in as many, then its bytes. The first frame on stdout has
number zero, is empty, and says that everything for tasks is loaded. Each later frame is an answer
with the number of its question, random and made when that is asked: so what a function of runtime
`pyspark`, which is called in this process, writes into the pipe answers nothing. In front of an
answer stands a byte: 0 before a result, 1 before an error.
"""

import os
import pickle
import signal
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO, Final

from rebaser_server.compute import isolation
from rebaser_server.compute.errors import describe
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.late_pandas import defer_pandas

NUMBER: Final = 8
LENGTH: Final = 8
DONE: Final = b"\0"
BROKEN: Final = b"\1"


def main() -> None:
    answers, questions = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)  # the output of functions is no answer
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # nor what they read a question
    defer_pandas()
    isolation.claim()
    isolation.end_with_parent()
    queue: SimpleQueue[tuple[bytes, bytes]] = SimpleQueue()
    Thread(target=_read_questions, args=(questions, queue), daemon=True).start()
    evaluate(WorkUnit().encode())  # loads what any unit takes
    number, answer = bytes(NUMBER), b""
    channel = os.fstat(answers.fileno())
    while True:
        answers.write(number + len(answer).to_bytes(LENGTH) + answer)
        answers.flush()
        isolation.end_children()
        number, question = queue.get()
        answer = _answer(question)
        if not os.path.samestat(os.fstat(answers.fileno()), channel):
            return  # a function has replaced the pipe, and the parent would wait for the answer


def _read_questions(questions: BinaryIO, queue: SimpleQueue[tuple[bytes, bytes]]) -> None:
    try:
        while len(number := questions.read(NUMBER)) == NUMBER:
            length = int.from_bytes(questions.read(LENGTH))
            queue.put((number, questions.read(length)))
    finally:
        # The parent is gone, or a function has closed what it asks by; and maybe one that never
        # returns is running, here or in a child.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(0)


def _answer(question: bytes) -> bytes:
    own = os.getpid()
    try:
        answer: bytes = pickle.loads(question)()  # noqa: S301 - from our parent
    except BaseException as error:  # noqa: BLE001 - for the parent to raise
        if os.getpid() != own:
            os._exit(0)  # a child that a function forked
        return BROKEN + describe(error).encode(errors="replace")
    return DONE + answer


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(1)  # at once: threads that functions left may never end
