"""Exit codes of `rebaser`, for supervisors and scripts."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended; the reason is on stderr."""

    OK = 0
    FAILED = 1
    REPAIRABLE = 3  # `rebaser doctor` found what it can repair, and nothing else
    DAMAGED = 4  # it found what needs a person
    BAD_SETTINGS = 2  # argparse's code for bad arguments; restarting does not help
    VALUES_FAILED = 5  # committed and computed, and values that depend on it failed
    CORRECTED = 6  # committed, but all updates were left out; with --strict, any was corrected
    NOT_IN_TIME = 7  # `--timeout` is over; what was sent goes on
    NO_NATS = 69  # EX_UNAVAILABLE; restarting later helps
    INTERRUPTED = 130  # a shell's code for Ctrl-C
