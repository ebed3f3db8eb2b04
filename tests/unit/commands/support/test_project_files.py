"""Names in a small project."""

import pytest

from rebaser_server.commands.init import project_name


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("Shop", "shop"),
        ("my-shop", "my_shop"),
        ("", "project"),
        ("é", "project"),
        ("1", "project_1"),
    ],
)
def test_names_are_like_those_of_directories(directory: str, name: str) -> None:
    """They are good for modules and distributions."""
    assert project_name(directory) == name
    assert f"{name}_functions".isidentifier()
