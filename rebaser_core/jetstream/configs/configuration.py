"""What all configurations have in common: their JSON is read and written without loss."""

from dataclasses import dataclass
from typing import Self

from rebaser_core.jetstream.configs.json_object import JsonObject


@dataclass(frozen=True, kw_only=True)
class Configuration(JsonObject):
    """What is None is not said: the server then has its default, and a comparison leaves it out.

    `a | b` is `a` with all that `b` says in its place. `to_json` returns just what `from_json`
    read: `unknown` is sent as it is, and a field that is known takes precedence.
    """

    def __or__(self, other: Self) -> Self:
        return self.from_json({**self.to_json(), **other.to_json()})
