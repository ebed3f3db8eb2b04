"""A request that a change set does not take, though nothing is wrong with it."""

from typing import Final

from rebaser_core.commits import RequestOutcome, SettledRequest

REASON_LENGTH: Final = 1_000
"""Characters of what the log says of a request that is refused or dead."""


def reject(handled: SettledRequest, reason: str) -> SettledRequest:
    message = f"refused: {reason}"[:REASON_LENGTH]
    return handled.model_copy(update={"outcome": RequestOutcome.REFUSED, "message": message})
