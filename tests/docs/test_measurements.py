"""The file of measurements keeps the tables of each part's last run."""

from pathlib import Path

from benchmarks.machine import Machine
from benchmarks.results import FILE, record
from benchmarks.tables import Table


def table(title: str, figure: int) -> Table:
    return Table(title, ["what", "ms"], [["it", figure]])


def test_a_part_that_runs_again_replaces_its_own_tables_alone(tmp_path: Path) -> None:
    """`make bench requests` must not lose what `make bench dvu` had measured."""
    machine, file = Machine({"cores": 2}), tmp_path / "results.md"

    record("requests", machine, [table("A request", 1), table("Many", 2)], file)
    record("dvu", machine, [table("An update", 3)], file)
    record("requests", machine, [table("A request", 4)], file)

    text = file.read_text()
    assert text.count("## requests\n\ncores: 2\n\n### A request\n") == 1
    assert "| it   |  4 |" in text
    assert "Many" not in text
    assert "## dvu\n\ncores: 2\n\n### An update\n" in text
    assert text.index("## requests") < text.index("## dvu")


def test_the_file_of_this_repository_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Text that was edited by hand outside of the parts would be lost with the next run."""
    file = tmp_path / "results.md"
    file.write_text(FILE.read_text())

    record("one more", Machine({"cores": 2}), [table("New", 1)], file)

    assert file.read_text().startswith(FILE.read_text().rstrip())
