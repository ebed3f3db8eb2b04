"""Settings are accepted under their former names, with a warning that names the present one."""

import pytest

from rebaser_server.settings.settings import (
    NEW_NAMES,
    PREFIX,
    BothNamesGiven,
    Settings,
    rename_variables,
    unknown_variables,
)


def test_a_former_name_is_replaced_and_warned_of() -> None:
    """The value moves to the present name, and the warning names both."""
    environment = {"REBASER_STORE__KEEP_REPLACED": "5", "HOME": "/"}

    [warning] = rename_variables(environment)

    assert environment == {"REBASER_STORE__REPLACED_FILE_RETENTION": "5", "HOME": "/"}
    assert "REBASER_STORE__KEEP_REPLACED" in warning
    assert "REBASER_STORE__REPLACED_FILE_RETENTION" in warning


def test_present_names_bring_no_warning() -> None:
    """An environment with present names only stays as it is."""
    environment = {"REBASER_MAX_ATTEMPTS": "3", "ATTEMPTS": "4"}

    assert rename_variables(environment) == []
    assert environment == {"REBASER_MAX_ATTEMPTS": "3", "ATTEMPTS": "4"}


def test_both_names_of_a_setting_are_an_error() -> None:
    """The error says which of the two to set, and nothing is changed."""
    environment = {"rebaser_attempts": "3", "REBASER_MAX_ATTEMPTS": "4"}

    with pytest.raises(BothNamesGiven, match="set only REBASER_MAX_ATTEMPTS"):
        rename_variables(environment)

    assert environment == {"rebaser_attempts": "3", "REBASER_MAX_ATTEMPTS": "4"}


@pytest.mark.parametrize(("former", "present"), NEW_NAMES.items())
def test_each_present_name_is_a_setting_and_each_former_name_is_not(
    former: str, present: str
) -> None:
    """The table holds no name that the settings do not know, or know still."""

    def is_setting(name: str) -> bool:
        group, _, field = name.lower().partition("__")
        if unknown_variables({PREFIX + name: ""}):
            return False
        annotation = Settings.model_fields[group].annotation
        return not field or field in getattr(annotation, "model_fields", {})

    assert is_setting(present)
    assert not is_setting(former)
