"""One of a thing is said in the singular, any other number in the plural."""

import pytest

from rebaser_core.errors import many


@pytest.mark.parametrize(
    ("count", "words", "said"),
    [
        (0, ("task",), "0 tasks"),
        (1, ("dead letter",), "1 dead letter"),
        (1000, ("batch", "batches"), "1,000 batches"),
    ],
)
def test_a_noun_agrees_with_its_count(count: int, words: tuple[str, ...], said: str) -> None:
    """Thousands are set off by a comma."""
    assert many(count, *words) == said
