"""Write into README and docs what the commands that they show print now."""

import tempfile
from pathlib import Path

from tests.docs.conftest import install, upped
from tests.docs.console import Session, written_anew
from tests.docs.test_console import SHOWING, variables


def main() -> None:
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
