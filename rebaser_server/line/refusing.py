"""A request that a change set does not take, though nothing is wrong with it."""

from rebaser_core.commits import Handled, Outcome


def refused(handled: Handled, reason: str) -> Handled:
    return handled.model_copy(update={"outcome": Outcome.REFUSED, "message": f"refused: {reason}"})
