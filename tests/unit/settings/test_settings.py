"""Settings that cannot be what they say are refused before anything starts."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rebaser_core.ids import WorkspaceId
from rebaser_server.settings.settings import FunctionSettings, Settings, StoreSettings


def test_tables_are_published_in_a_folder_and_in_no_object_store() -> None:
    assert StoreSettings.model_validate({"published": "tables"}).published == Path("tables")
    with pytest.raises(ValidationError, match="give its path, not a URI"):
        StoreSettings.model_validate({"published": "s3://bucket/tables"})


def test_workspaces_that_may_put_sql_are_ids_between_commas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All unless they are named, and none if the variable is empty."""
    one, other = WorkspaceId(), WorkspaceId()
    found = [FunctionSettings().sql_workspaces]
    for text in ("", f"{one}, {other}"):
        monkeypatch.setenv("REBASER_FUNCTIONS__SQL_WORKSPACES", text)
        found.append(Settings().functions.sql_workspaces)

    assert found == [None, frozenset(), {one, other}]
    with pytest.raises(ValidationError, match="should be a ULID"):
        FunctionSettings.model_validate({"sql_workspaces": "shop"})
