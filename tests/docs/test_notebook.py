"""The notebook of the examples in a real kernel."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.conftest import ROOT, Up

COMPLETE = """print(get_ipython().complete(None, 'values["gross/', 14)[1])"""


@pytest.mark.long
async def test_the_notebook_runs_and_shows_what_people_look_at(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan, values and the difference are tables, inputs a drawing; names are completed."""
    monkeypatch.setenv("REBASER_NATS__URL", up.nats.url)
    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", nbformat.NO_CONVERT)
    book.cells.insert(-1, nbformat.v4.new_code_cell(COMPLETE))

    await NotebookClient(book, timeout=300, kernel_name="python3").async_execute()

    shown = [
        output.get("data", {}).get("text/html")
        or output.get("data", {}).get("image/svg+xml")
        or output.get("text")
        or output["data"]["text/plain"]
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    handle, plan, values, total, frame, graph, history, difference, words, completed, *_ = shown
    assert handle == "<SyncWorkspace for <WorkspaceHandle 'notebook'>>"
    assert "<table>" in plan
    assert "2026-07-01" in values
    assert float(total) == pytest.approx(146.965)
    assert "net/A1" in frame
    assert graph.startswith("<svg")
    assert graph.count("<path") == 3 + 2 * 3
    assert "<td>146.965</td>" in history
    assert "<td>4 computed</td>" not in difference
    assert "<td>total</td><td>1 computed</td><td>146.965</td><td>132.145</td>" in difference
    assert words.startswith("Apply 1 edit to head? 4 computed values differ.\n")
    assert "gross/A1" in completed
