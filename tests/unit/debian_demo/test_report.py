"""What is printed is read by people and by programs; both are promised something."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from debian_demo.report import Report, histogram

REPORT = Report(
    package="libc6",
    pending=True,
    packages=63_436,
    exposed_before=49_089,
    exposed_after=38_744,
    distance_changed=18_808,
    distances_before={0: 2762, 1: 29192, 2: 13523, 3: 3022, 4: 483, 5: 78, 6: 18, 7: 8, 8: 2, 9: 1},
    distances_after={
        0: 2760,
        1: 16154,
        2: 14160,
        3: 4281,
        4: 1017,
        5: 281,
        6: 78,
        7: 6,
        8: 5,
        9: 2,
    },
    values=190_363,
    affected_first=126_927,
    affected_second=99_999,
    recomputed_first=126_927,
    recomputed_second=88_888,
    seconds={"start": 4.32109, "load": 2.0},
)


def printed(report, encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    with redirect_stdout(file):
        report.show()
        file.flush()
    return raw.getvalue().decode(encoding)


def test_json_has_the_promised_keys_and_survives_a_round_trip():
    """Programs read this object: a new key is a change to announce, not an accident."""
    answer = json.loads(json.dumps(REPORT.as_json()))

    assert answer == {
        "packages": 63_436,
        "exposed_before": 49_089,
        "exposed_after": 38_744,
        "distance_changed": 18_808,
        "values": 190_363,
        "recomputed_first": 126_927,
        "recomputed_second": 88_888,
        "seconds": {"start": 4.321, "load": 2.0},
    }


@pytest.mark.parametrize("number", ["63,436", "49,089", "38,744", "18,808", "77.4%", "61.1%"])
def test_the_report_shows_the_answer(number):
    assert number in printed(REPORT)


@pytest.mark.parametrize("number", ["190,363", "126,927", "99,999", "88,888", "4.3"])
def test_the_report_shows_the_work_and_the_time(number):
    assert number in printed(REPORT)


def test_the_report_fits_into_80_columns():
    assert max(map(len, printed(REPORT).splitlines())) <= 80


def test_the_report_can_be_printed_in_ascii():
    """Bars and lines are drawn with what the terminal has, and never end the demo with an error."""
    assert "####" in printed(REPORT, "ascii")


def test_a_package_is_no_markup():
    assert "[bold]" in printed(replace(REPORT, package="[bold]"))


def test_fixing_what_needs_no_fix_is_said_to_change_nothing():
    assert "No fix was pending for zip:" in printed(replace(REPORT, package="zip", pending=False))
    assert "No fix was pending" not in printed(REPORT)


def test_nothing_at_all_can_be_reported():
    """A run in which no package is exposed has no longest bar to scale by."""
    nothing = replace(REPORT, packages=0, distances_before={}, distances_after={})

    assert "hops" in printed(nothing)


def test_a_histogram_is_in_order_and_leaves_out_the_unexposed():
    assert list(histogram([2, None, 0, 2, 1]).items()) == [(0, 1), (1, 1), (2, 2)]
