"""The rejection of a well-formed request by a change set."""

from typing import Final

from rebaser_core.commits import RequestOutcome, SettledRequest

REASON_LENGTH: Final = 1_000
"""Most characters of the reason that the log holds of a rejected or dead request."""


def reject(handled: SettledRequest, reason: str) -> SettledRequest:
    message = f"refused: {reason}"[:REASON_LENGTH]
    return handled.model_copy(update={"outcome": RequestOutcome.REFUSED, "message": message})
