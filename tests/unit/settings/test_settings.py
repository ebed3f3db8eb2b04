"""Settings that cannot be what they say are refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rebaser_core.ids import WorkspaceId
from rebaser_server.settings.settings import (
    FunctionSettings,
    Settings,
    StoreSettings,
    malformed_objects,
    service_variables,
    unknown_variables,
)


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


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"nats": {"user": "me", "token": "t"}}, "user and token exclude each other"),
        ({"nats": {"password": "p"}}, "a password without a user"),
        ({"store": {"root": "/data/store", "sources": "/here:/data"}}, "the store lies below"),
        ({"store": {"root": "s3://me:secret@bucket/a"}}, "a password in a URI"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: Any, complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Settings.model_validate(settings)


def test_a_misspelt_variable_is_named() -> None:
    right = {"REBASER_NATS__URL": "", "rebaser_log_level": "", "PATH": ""}
    wrong = ["REBASER_NAT__URL", "REBASER_QUIET_PERIODS"]

    assert unknown_variables({**right, **dict.fromkeys(wrong, "")}) == wrong


def test_variables_of_services_are_no_settings() -> None:
    of_service = ["REBASER_OPS_PORT_80_TCP_ADDR", "REBASER_OPS_SERVICE_HOST"]
    settings = ["REBASER_OPS__PORT", "REBASER_OPS_PAGE"]

    assert service_variables(dict.fromkeys([*of_service, *settings], "")) == of_service


def test_an_object_that_is_no_json_is_named() -> None:
    right = {"REBASER_OPS": "{}", "REBASER_NATS__URL": "a", "REBASER_STORE__OPTIONS": "{}"}
    wrong = {"REBASER_SPARK__CONF": "a=b", "rebaser_nats": ""}

    assert malformed_objects({**right, **wrong}) == [*wrong]
