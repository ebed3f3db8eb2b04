"""Tokens with names and roles, as settings and files have them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rebaser_server.settings.settings import OpsSettings, Role, Settings, parse_tokens


def test_each_role_includes_those_before_it() -> None:
    """A viewer may do least, an operator most."""
    assert [role for role in Role if Role.APPROVER.includes(role)] == [
        Role.VIEWER,
        Role.EDITOR,
        Role.APPROVER,
    ]


def test_tokens_stand_on_lines_or_between_commas() -> None:
    """With comments and blanks, as people write them."""
    tokens = parse_tokens("# who\nada operator s3cret,  bob viewer t0ken\n\n eve editor e=,\n")

    assert [(token.name, token.role) for token in tokens] == [
        ("ada", Role.OPERATOR),
        ("bob", Role.VIEWER),
        ("eve", Role.EDITOR),
    ]
    assert tokens[0].secret.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(tokens)


def test_the_setting_the_file_and_the_single_token_count_together(tmp_path: Path) -> None:
    """The single token may read, as it could before there were roles."""
    file = tmp_path / "tokens"
    file.write_text("ada operator s3cret\n")

    ops = OpsSettings.model_validate({"token": "old", "tokens": "al editor a", "tokens_file": file})

    assert [(token.name, token.role) for token in ops.access_tokens()] == [
        ("viewer", Role.VIEWER),
        ("al", Role.EDITOR),
        ("ada", Role.OPERATOR),
    ]


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ("ada s3cret", "token 1 is not of the form"),
        ("bob viewer b, ada s3cret boss", "token 2: its second word is no role; there are viewer"),
        ("ada operator s3cret, ada viewer other", "two tokens have one name"),
        ("ada operator s3cret, bob viewer s3cret", "two names have one token"),
        ("viewer operator s3cret", "two tokens have one name"),
        (" , ", "there is none among them"),
    ],
)
def test_tokens_that_make_no_sense_are_refused_and_not_shown(tokens: str, complaint: str) -> None:
    """The error says which one is wrong, and no secret."""
    with pytest.raises(ValidationError, match=complaint) as error:
        Settings.model_validate({"ops": {"token": "old", "tokens": tokens}})

    assert "s3cret" not in error.value.json(include_input=False)
