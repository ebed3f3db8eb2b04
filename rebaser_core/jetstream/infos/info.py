"""What all that the server tells of a thing has in common."""

from dataclasses import dataclass
from typing import ClassVar

from rebaser_core.jetstream.configs.json_object import JsonObject


@dataclass(frozen=True, kw_only=True)
class Info(JsonObject):
    """How a thing is at a moment; times are cut to microseconds.

    A field without a default is always said: an answer without it is `NotJetStream`.
    """

    is_exact: ClassVar[bool] = False
