"""pyarrow leaves pandas alone until it is imported, and knows it then."""

import subprocess
import sys

_BEFORE = """
import sys
import pyarrow as pa
from rebaser_server.runtime.late_pandas import defer_pandas
defer_pandas()
defer_pandas()
pa.array(["a"]), pa.table({"a": [1]}).to_pylist()
print("pandas" in sys.modules)
"""


def _said_by(program: str) -> list[str]:
    command = [sys.executable, "-c", _BEFORE + program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_pandas_is_not_imported_for_what_is_not_of_pandas() -> None:
    assert _said_by("") == ["False"]


def test_what_is_of_pandas_is_taken_as_ever_once_pandas_is_imported() -> None:
    """What is not a number is nothing in a series, and a number elsewhere."""
    program = """
import pandas as pd
print(pa.array(pd.Series([1.0, float("nan")])).null_count, pa.array([float("nan")]).null_count)
print(pa.lib._pandas_api.have_pandas, pa.Table.from_pandas(pd.DataFrame({"a": [1]})).num_rows)
"""
    assert _said_by(program) == ["False", "1", "0", "True", "1"]


def test_a_table_becomes_one_of_pandas_although_nobody_imported_that() -> None:
    assert _said_by('print(type(pa.table({"a": [1]}).to_pandas()).__name__)') == [
        "False",
        "DataFrame",
    ]


def test_pandas_that_is_not_there_is_missing_as_ever() -> None:
    program = """
sys.meta_path[1:] = []
try:
    import pandas
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert _said_by(program) == ["False", "pandas"]
