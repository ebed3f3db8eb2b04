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


@pytest.mark.parametrize(
    "url", ["", "http://nats:8222", "nats://nats:99999", "nats:1,", "nats://a:b@x,nats://c:d@y"]
)
def test_what_is_no_url_of_nats_is_refused_before_anything_starts(url: str) -> None:
    """Or a daemon that systemd starts again would try it for ever."""
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"nats": {"url": url}})

    [problem] = refused.value.errors()
    assert problem["loc"] == ("nats", "url")
    assert "b@" not in problem["msg"]


@pytest.mark.parametrize(("name", "text"), [("inbox_prefix", "a..b"), ("api_prefix", "a b")])
def test_a_prefix_that_begins_no_subject_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings.model_validate({"nats": {name: text}})
    assert Settings.model_validate({"nats": {name: "$JS.hub.API"[name > "b" :]}})


@pytest.mark.parametrize(
    ("root", "is_store"),
    [("", False), ("s3://", False), ("az://b/c", False), ("ftp://b", False), ("S3://b", False)]
    + [(root, True) for root in ("a", "/a/b://c", "nats:", "file:///a", "s3://b", "gs://b/c")]
    + [("abfss://c@a.dfs.core.windows.net/p", True)],
)
def test_a_store_that_nothing_here_reaches_is_refused(root: str, is_store: bool) -> None:
    if is_store:
        assert StoreSettings.model_validate({"root": root}).root == root
        return
    with pytest.raises(ValidationError, match="no store: one is a directory"):
        StoreSettings.model_validate({"root": root})


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
    wrong = {"REBASER_LIMITS": "{}x", "REBASER_NATS__TLS": "{"}
    wrong |= {"REBASER_SPARK__CONF": "a=b", "rebaser_nats": ""}

    assert malformed_objects({**right, **wrong}) == [*wrong]
