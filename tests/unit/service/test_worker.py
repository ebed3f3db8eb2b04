"""The services that the command line names."""

from pathlib import Path

import pytest

from rebaser_server.service.worker import AppNotFound, find_services


@pytest.mark.parametrize(
    ("module", "code", "reason"),
    [
        ("spoilt_syntax", "def broken(:", r"SyntaxError: .*spoilt_syntax\.py, line 1"),
        ("spoilt_zero", "\n1 / 0", r"ZeroDivisionError: division by zero \(.*spoilt_zero\.py:2\)"),
        ("spoilt_import", "from json import nothing", r"ImportError: .*spoilt_import\.py:1"),
    ],
)
def test_a_module_that_cannot_be_imported_is_no_fault_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, reason: str
) -> None:
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(AppNotFound, match=f"--app {module}:orders: .*{reason}"):
        find_services(f"{module}:orders")
