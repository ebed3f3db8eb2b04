"""Delta finds a table below any root on this machine."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from rebaser_server.files import delta_root, local_path

NAMES = [
    *(f"a{chr(code)}41" for code in range(1, 128) if chr(code) != "/"),
    *("~", "s3:", "%2F", "%20x", "100%", " a ", "ü\N{GRINNING FACE}"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_table_below_any_root_is_where_files_are_looked_for(tmp_path: Path, name: str) -> None:
    root, options = delta_root(str(tmp_path / name), {})

    create(f"{root}/t", options)
    write_deltalake(f"{root}/t", pa.table({"a": [1]}), mode="append", storage_options=options)

    assert DeltaTable(f"{root}/t", storage_options=options).count() == 1
    assert (tmp_path / name / "t" / "_delta_log" / f"{1:020d}.json").is_file()


def test_of_two_writers_to_a_table_below_an_odd_root_one_wins(tmp_path: Path) -> None:
    root, options = delta_root(str(tmp_path / "%2F"), {})
    create(f"{root}/t", options)
    first, second = (DeltaTable(f"{root}/t", storage_options=options) for _ in range(2))
    properties = CommitProperties(app_transactions=[Transaction(app_id="test", version=1)])

    write_deltalake(first, pa.table({"a": [1]}), mode="append", commit_properties=properties)
    with pytest.raises(CommitFailedError):
        write_deltalake(second, pa.table({"a": [2]}), mode="append", commit_properties=properties)

    assert DeltaTable(f"{root}/t", storage_options=options).count() == 1


def test_a_link_to_an_odd_folder_is_seen_through(tmp_path: Path) -> None:
    """Delta itself does."""
    (tmp_path / "%2F").mkdir()
    (tmp_path / "plain").symlink_to(tmp_path / "%2F")

    root, options = delta_root(str(tmp_path / "plain"), {})
    create(f"{root}/t", options)

    assert (tmp_path / "%2F" / "t" / "_delta_log").is_dir()


def test_the_uri_of_a_file_is_a_path_and_that_of_an_object_store_is_none() -> None:
    assert local_path("file:///a%20b/%252F") == Path("/a b/%2F")
    assert local_path("/a://b") == Path("/a:/b")
    assert local_path("s3://a/b") is None


def create(uri: str, options: dict[str, str]) -> None:
    DeltaTable.create(uri, pa.schema([("a", pa.int64())]), storage_options=options)
