"""The API reference shows every public name, with its signature and its docstring."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

import rebaser_client
import rebaser_core.jetstream
from tests.docs.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("api_reference", ROOT / "docs" / "api_reference.py")
api_reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(api_reference)

SOURCE = '''
class Door(_Base, ValueError):
    """A door.

    Raises:
        Locked: it is locked; bring
            a key.
    """

    width: float = 0.9
    """Metres."""
    _hinge: int = 0

    async def open(self, by: str, *, within: "float | None" = None) -> "bool":
        """Open the door."""

    @property
    def is_open(self) -> bool:
        """Whether the door is open."""

    def _creak(self) -> None: ...
'''

SHOWN = """### Door

*A kind of `ValueError`.*

A door.

**Raises**

- `Locked`: it is locked; bring a key.

- `width: float = 0.9`: Metres.

#### Door.open

```python
await open(by: str, *, within: float | None = None) -> bool
```

Open the door.

#### Door.is_open

```python
is_open: bool
```

Whether the door is open."""


def rendered(page: str, root: Path = ROOT) -> str:
    config = SimpleNamespace(docs_dir=root / "docs")
    return api_reference.on_page_markdown(page, config=config)


def test_a_class_is_shown_with_its_public_members(tmp_path: Path) -> None:
    """Signatures and docstrings are shown; private members and base classes are not."""
    (tmp_path / "house.py").write_text(SOURCE)

    assert rendered("<!-- reference: house -->\n\n- `Old`\n", tmp_path).strip() == SHOWN


@pytest.mark.parametrize(
    ("page", "package"),
    [("api.md", rebaser_client), ("jetstream.md", rebaser_core.jetstream)],
    ids=["client", "jetstream"],
)
def test_every_exported_name_is_on_its_page(page: str, package: object) -> None:
    """What a package exports is what its users may rely on, so the reference has all of it."""
    shown = rendered((ROOT / "docs" / page).read_text())

    assert [name for name in package.__all__ if f"### {name}\n" not in shown] == []


@pytest.mark.parametrize("page", ["api.md", "jetstream.md"])
def test_the_page_in_the_repository_lists_every_name(page: str) -> None:
    """A code host shows the page as it is; `python -m tests.docs` writes the lists."""
    text = (ROOT / "docs" / page).read_text()

    assert "\n- [`" in text
    assert text == api_reference.listed(text, ROOT)


def test_a_module_that_does_not_exist_fails_the_build() -> None:
    """A renamed module must not silently leave the reference."""
    with pytest.raises(FileNotFoundError):
        rendered("<!-- reference: rebaser_client.no_such_module -->\n")
