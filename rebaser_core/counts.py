"""A count before what is counted."""


def many(count: int, noun: str, plural: str | None = None) -> str:
    """`1 value`, `2 values`, `1,000 batches`. The plural is the noun with an s if none is given."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
