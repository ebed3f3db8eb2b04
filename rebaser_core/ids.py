"""Identifiers: ULIDs, one type for each thing they name."""

from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, core_schema
from ulid import ULID

_CANONICAL: Final = r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$"


class _Id(ULID):
    """A ULID with one text alone: as `str` writes it. Subjects and message ids rely on it."""

    @classmethod
    def from_str(cls, string: str) -> Self:
        """Raises `ValueError` for any other text, also for lower case."""
        made = super().from_str(string)
        if str(made) != string:
            raise ValueError(f"{string!r} is not canonical: {made}")
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # The library's own also takes integers, and lets errors out that are no ValueError.
        text = core_schema.str_schema(pattern=_CANONICAL, strict=True)
        return core_schema.union_schema(
            [
                core_schema.is_instance_schema(ULID),
                core_schema.no_info_after_validator_function(cls.from_str, text),
            ],
            custom_error_type="ulid",
            custom_error_message="Input should be a ULID in its canonical text, in upper case",
            serialization=core_schema.to_string_ser_schema(when_used="json-unless-none"),
        )


class WorkspaceId(_Id):
    """Names a workspace."""


class ChangeSetId(_Id):
    """Names a change set; unique beyond its workspace."""


class RequestId(_Id):
    """Names a request for good: every retry carries it again."""


class ChangeSet(NamedTuple):
    """The unit of exclusive work: a change set and the workspace that it is in."""

    workspace_id: WorkspaceId
    change_set_id: ChangeSetId

    def __str__(self) -> str:
        return f"{self.workspace_id}.{self.change_set_id}"


UlidText = Annotated[str, StringConstraints(pattern=_CANONICAL)]
"""A ULID in its canonical text. Values and functions are named so: there may be many."""

ValueId = UlidText
FuncId = UlidText
