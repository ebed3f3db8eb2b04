"""What the process tells its supervisor or a script."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; whatever a command found or failed at, it says on stderr."""

    OK = 0
    FAILED = 1
    REPAIRABLE = 3  # `rebaser doctor` found what it can repair, and nothing else
    DAMAGED = 4  # it found what a person has to see to
    BAD_SETTINGS = 2  # as argparse has it for bad arguments; restarting will not help
    VALUES_FAILED = 5  # committed and computed, and values that depend on it failed
    CORRECTED = 6  # committed, but no update fitted; with --strict, not each as it was sent
    NO_NATS = 69  # EX_UNAVAILABLE; restarting later will
    INTERRUPTED = 130  # as a shell has it for Ctrl-C
