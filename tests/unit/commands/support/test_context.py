"""The address in use, in the user's configuration directory."""

import json
import os
from pathlib import Path

import pytest

from rebaser_server.commands.support.addresses import (
    AddressNotStored,
    address_in_use,
    context_file,
    use_address,
)
from rebaser_server.settings.settings import NatsSettings, Settings

HERE = Settings(nats=NatsSettings(url="nats://ada:secret@127.0.0.1:4222"))
STAGING = Settings(nats=NatsSettings(url="nats://127.0.0.1:4222", prefix="staging"))


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_each_deployment_has_an_address_of_its_own(tmp_path: Path) -> None:
    """User and password do not count, and are not stored."""
    use_address(HERE, "shop/winter")
    use_address(STAGING, "shop")
    elsewhere = Settings(nats=NatsSettings(url="nats://10.0.0.1:4222"))
    other_user = Settings(nats=NatsSettings(url="nats://127.0.0.1:4222"))

    assert address_in_use(other_user) == ("shop/winter", "rebaser use")
    assert address_in_use(STAGING) == ("shop", "rebaser use")
    assert address_in_use(elsewhere) is None
    assert context_file() == tmp_path / "rebaser" / "addresses.json"
    assert "secret" not in context_file().read_text()


def test_a_forgotten_address_leaves_those_of_other_deployments() -> None:
    """Nothing but the one file is left behind."""
    use_address(HERE, "shop")
    use_address(STAGING, "shop")

    use_address(HERE, None)

    assert address_in_use(HERE) is None
    assert address_in_use(STAGING) == ("shop", "rebaser use")
    assert [*context_file().parent.iterdir()] == [context_file()]


def test_a_directory_that_takes_no_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what does without the directory; reading is as if there were none."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))

    with pytest.raises(AddressNotStored, match=r"addresses\.json cannot be written: .*REBASER_ADD"):
        use_address(HERE, "shop")
    assert address_in_use(HERE) is None


def test_a_user_without_a_home_has_no_address_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers may run as a user without a name."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_000_000_000)

    with pytest.raises(AddressNotStored, match=r"no home directory.* set REBASER_ADDRESS, HOME"):
        use_address(HERE, "shop")
    assert address_in_use(HERE) is None


def test_the_setting_comes_first() -> None:
    """`REBASER_ADDRESS` is for scripts and for one terminal."""
    use_address(HERE, "shop")

    assert address_in_use(HERE.model_copy(update={"address": "prices"})) == (
        "prices",
        "REBASER_ADDRESS",
    )


@pytest.mark.parametrize("damage", ["", "{", "[]", json.dumps({"127.0.0.1:4222": 7})])
def test_a_damaged_file_counts_as_none(damage: str) -> None:
    """The next address replaces it."""
    use_address(HERE, "shop")
    context_file().write_text(damage)

    assert address_in_use(HERE) is None
    use_address(HERE, "shop")
    assert address_in_use(HERE) == ("shop", "rebaser use")
