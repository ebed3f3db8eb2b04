"""The other end of `evaluator_processes`: the template of evaluators, and what an evaluator does.

The template has its end of a socket on stdin. For each message there, a number of eight bytes with
two descriptors, it forks an evaluator with these: a channel, and a pipe for prints. Of each it
reports, as `REPORT` says, that it was forked, or why not, and how it ended. It ends with its
socket.

An evaluator answers the questions that come by its channel, until that ends. A question is a
callable without arguments, pickled; an answer is the bytes that it returns. A frame is a number of
eight bytes, its length in as many, then its bytes. An answer has the number of its question, random
and made when that is asked: so what a function of runtime `pyspark`, which is called in this
process, writes into the channel answers nothing. In front of an answer stands a byte: 0 before a
result, 1 before an error.
"""

import gc
import os
import pickle
import select
import signal
import socket
import traceback
from contextlib import suppress
from errno import EMFILE
from pathlib import Path
from struct import Struct
from typing import Final

from rebaser_server.compute import isolation
from rebaser_server.compute.errors import describe
from rebaser_server.compute.evaluation import evaluate
from rebaser_server.compute.work_unit import WorkUnit
from rebaser_server.runtime.late_pandas import defer_pandas

NUMBER: Final = 8
LENGTH: Final = 8
DONE: Final = b"\0"
BROKEN: Final = b"\1"

_GIVEN: Final = 2
"""Descriptors of a message."""
_AT_ONCE: Final = 1 << 16
"""Bytes of a pipe that are read at once: all that it holds."""
REPORT: Final = Struct("=qqq")
"""Report about an evaluator: its kind, the evaluator's number, and a third."""
FORKED: Final = 1
"""Kind of one that is there; the third is its process id."""
REFUSED: Final = 2
"""Kind of one that could not be forked; the third is the system's number of the error."""
ENDED: Final = 3
"""Kind of one that has ended; the third is its exit code, as `Popen.returncode`."""


def main() -> None:
    control = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # what functions read is no message
    isolation.print_everything()  # now: a stream cannot be told to once its file is another kind
    isolation.end_with_parent()
    defer_pandas()
    evaluate(WorkUnit().encode())  # loads what any unit takes
    gc.collect()
    gc.freeze()  # else each evaluator would copy all this, by its collections of garbage
    # A daemon that dies before it has read all reports resets the connection.
    with suppress(ConnectionError):
        _fork_on_demand(control)


def _fork_on_demand(control: socket.socket) -> None:
    """Fork evaluators and report their ends, until the daemon's end of the socket is closed."""
    ends, written = os.pipe()
    for each in (ends, written):
        os.set_blocking(each, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    # Python writes to the wakeup descriptor only for signals that have a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    evaluators: dict[int, int] = {}
    """Number of each, by its process id."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(ends, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if ends in ready:
            os.read(ends, _AT_ONCE)  # before they are looked for: one that ends now wakes again
            _report_ends(control, evaluators)
        if control.fileno() not in ready:
            continue
        message, given, _, _ = socket.recv_fds(control, NUMBER, _GIVEN)
        if not message:
            return
        number = int.from_bytes(message)
        try:
            if len(given) < _GIVEN:  # the system keeps them back where no more may be open
                raise OSError(EMFILE, "")
            evaluators[_fork(control, ends, number, *given)] = number
        except OSError as error:
            control.send(REPORT.pack(REFUSED, number, error.errno or 0))
        # Descriptors that stay open here pass to later evaluators, and outlive the one that they
        # are for.
        for each in given:
            os.close(each)


def _report_ends(control: socket.socket, evaluators: dict[int, int]) -> None:
    while evaluators:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        number, code = evaluators.pop(pid), os.waitstatus_to_exitcode(status)
        control.send(REPORT.pack(ENDED, number, code))


def _fork(control: socket.socket, ends: int, number: int, channel: int, prints: int) -> int:
    """Fork an evaluator; return its process id."""
    template, pid = os.getpid(), isolation.fork()
    if pid:
        return pid
    try:
        # A session of its own would be a group of its own to the kernel's scheduler, and priorities
        # mean something within a group alone.
        os.setpgid(0, 0)
        os.dup2(prints, 1)
        os.dup2(prints, 2)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # `set_wakeup_fd` returns the descriptor that wakes the template: no evaluator may do so.
        for each in (prints, ends, signal.set_wakeup_fd(-1)):
            os.close(each)
        isolation.claim()
        isolation.end_with_parent(template)
        # The report comes after `setpgid`: the daemon kills the group, which must exist by then.
        control.send(REPORT.pack(FORKED, number, os.getpid()))
        control.close()
        _answer_questions(socket.socket(fileno=channel))
    except ConnectionError:  # the daemon has died; the functions' own errors are answers
        pass
    except BaseException:  # noqa: BLE001 - it is the last one
        traceback.print_exc()
    finally:
        os._exit(1)  # at once: threads that functions left may never end


def _answer_questions(channel: socket.socket) -> None:
    own, stream = os.fstat(channel.fileno()), channel.makefile("rwb")
    while len(number := stream.read(NUMBER)) == NUMBER:
        answer = _answer(stream.read(int.from_bytes(stream.read(LENGTH))))
        if not os.path.samestat(os.fstat(channel.fileno()), own):
            return  # a function has replaced it, and the daemon would wait for the answer
        stream.write(number + len(answer).to_bytes(LENGTH) + answer)
        stream.flush()
        isolation.end_children()


def _answer(question: bytes) -> bytes:
    own = os.getpid()
    try:
        answer: bytes = pickle.loads(question)()  # noqa: S301 - from our daemon
    except BaseException as error:  # noqa: BLE001 - for the daemon to raise
        if os.getpid() != own:
            os._exit(0)  # a child that a function forked
        return BROKEN + describe(error).encode(errors="replace")
    return DONE + answer


if __name__ == "__main__":
    main()
