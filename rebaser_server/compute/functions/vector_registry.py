"""The registry of builtin functions that take many calls at once."""

from collections.abc import Callable
from typing import Final

from rebaser_server.compute.functions.vector_functions import (
    ArgumentBuffers,
    VectorFunction,
    VectorResult,
)

LISTS: Final = {"values", "table"}
"""The arguments that are lists."""


class VectorRegistry(dict[str, VectorFunction]):
    """Functions by name, each called with its arguments by name and with the number of calls."""

    def register(
        self, name: str, *required: str, optional: tuple[str, ...] = ()
    ) -> Callable[[Callable[..., VectorResult]], Callable[..., VectorResult]]:
        """Of calls with other arguments than these, the scalar function itself says what is wrong.

        `values` and `table` are lists, the others are not.
        """

        def add(function: Callable[..., VectorResult]) -> Callable[..., VectorResult]:
            def checked(arguments: dict[str, ArgumentBuffers], count: int) -> VectorResult:
                names = set(arguments)
                fits = names >= set(required) and names <= {*required, *optional}
                if not fits or any((n in LISTS) != arguments[n].is_list for n in names):
                    return VectorResult.none(count)
                return function(count=count, **arguments)

            self[name] = checked
            return function

        return add
