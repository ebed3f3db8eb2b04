"""Mistakes in the words of a command end with what is near, and with the way to all of them."""

import pytest

from rebaser_server.commands.cli import main
from rebaser_server.commands.support.arguments import Exit


@pytest.mark.parametrize(
    ("line", "usage", "error"),
    [
        ("valeus shop", "rebaser", "there is no command 'valeus'; there is 'values', 'tables'; "),
        ("undo", "rebaser", "there is no command 'undo'; `rebaser --help` lists all"),
        ("dvu cancle shop", "rebaser dvu", "there is no command 'cancle'; there is 'cancel'; "),
        ("log shop --jsn 3", "rebaser log", "there is no option '--jsn'; there is '--json'; "),
        ("log shop --jsn=3", "rebaser log", "there is no option '--jsn'; there is '--json'; "),
        ("dead-letters show 3 4", "rebaser dead-letters show", "too many arguments: 4"),
        ("--quiet log", "rebaser log", "there is no option '--quiet'; `rebaser log --help` lists"),
    ],
)
def test_a_mistake_in_a_command_line_is_named_with_what_is_near(
    line: str, usage: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())

    text = capsys.readouterr().err
    assert ended.value.code == Exit.BAD_SETTINGS
    assert text.startswith(f"usage: {usage} [-h]")
    assert f"\n{usage}: error: {error}" in text
