"""Write into README and docs what commands print now, and which names the API has."""

import tempfile
from pathlib import Path

from tests.docs.conftest import ROOT, install, upped
from tests.docs.console import Session, written_anew
from tests.docs.test_api_reference import api_reference
from tests.docs.test_console import SHOWING, variables


def main() -> None:
    for page in (ROOT / "docs" / "api.md", ROOT / "docs" / "jetstream.md"):
        page.write_text(api_reference.listed(page.read_text(), ROOT))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        install(directory / "functions")
        with upped(directory / "up", directory / "functions") as up:
            for page in SHOWING:
                there = directory / page.stem
                there.mkdir()
                text, wrong = written_anew(page.read_text(), Session(there, variables(up)))
                page.write_text(text)
                print(f"{page.name}: {len(wrong)} commands written anew")


if __name__ == "__main__":
    main()
