"""Mistakes in the words of a command end with what is near, and with the way to all of them."""

import pytest

from rebaser_server.commands.cli import build_parser, main
from rebaser_server.commands.support.arguments import Exit

BEHIND = "options stand behind the command"


@pytest.mark.parametrize(
    ("line", "usage", "error"),
    [
        ("valeus shop", "rebaser", "there is no command 'valeus'; there is 'values', 'tables'; "),
        ("undo", "rebaser", "there is no command 'undo'; `rebaser --help` lists all"),
        ("dvu cancle shop", "rebaser dvu", "there is no command 'cancle'; there is 'cancel'; "),
        (
            "log shop --jsn 3",
            "rebaser log",
            "there is no option '--jsn'; there is '--json'; ",
        ),
        (
            "log shop --jsn=3",
            "rebaser log",
            "there is no option '--jsn'; there is '--json'; ",
        ),
        ("dead-letters show 3 4", "rebaser dead-letters show", "too many arguments: 4"),
        ("--quiet log", "rebaser log", "there is no option '--quiet'; `rebaser log --help` lists"),
        (
            "--json workspaces list",
            "rebaser workspaces list",
            f"{BEHIND}: `rebaser workspaces list --json`",
        ),
        ("--wait --yes load shop f", "rebaser load", f"{BEHIND}: `rebaser load --wait`"),
        ("--timeout 5 load shop f", "rebaser load", f"{BEHIND}: `rebaser load --timeout`"),
        ("--timeout=5 load shop f", "rebaser load", f"{BEHIND}: `rebaser load --timeout`"),
        ("--tree values shop", "rebaser values get", f"{BEHIND}: `rebaser values get --tree`"),
        ("values --tree get shop", "rebaser values get", f"{BEHIND}: `rebaser values get --tree`"),
        (
            "values --tree set shop",
            "rebaser values set",
            "there is no option '--tree'; there is '--text'",
        ),
        ("dvu --failed run shop", "rebaser dvu run", f"{BEHIND}: `rebaser dvu run --failed`"),
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


@pytest.mark.parametrize(
    ("line", "address", "name"),
    [
        ("values --all shop get", "shop", ["get"]),
        ("values --at 3 shop net", "shop", ["net"]),
        ("values -- get net", "get", ["net"]),
    ],
)
def test_an_option_before_the_address_leaves_out_the_default_command(
    line: str, address: str, name: list[str]
) -> None:
    arguments = build_parser().parse_args(line.split())

    assert (arguments.action, arguments.address, arguments.name) == ("get", address, name)
