"""`rebaser use` without a deployment: show the address in use, and forget it."""

from pathlib import Path

import pytest

from rebaser_server.commands.cli import main
from rebaser_server.commands.support.addresses import use_address
from rebaser_server.settings.settings import Settings


def test_the_address_in_use_is_shown_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither needs NATS; a variable counts before the stored address."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    use_address(Settings(), "shop/winter")

    assert main(["use"]) == 0
    monkeypatch.setenv("REBASER_ADDRESS", "prices")
    assert main(["use", "--json"]) == 0
    monkeypatch.delenv("REBASER_ADDRESS")
    assert main(["use", "--clear"]) == 0

    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "shop/winter (rebaser use)",
        '{"address": "prices", "source": "REBASER_ADDRESS"}',
    ]
    assert "no address is in use" in printed.err


def test_an_address_and_clear_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is stored or forgotten then."""
    with pytest.raises(SystemExit) as ended:
        main(["use", "shop", "--clear"])

    assert ended.value.code == 2
    assert "give an ADDRESS, or --clear" in capsys.readouterr().err
