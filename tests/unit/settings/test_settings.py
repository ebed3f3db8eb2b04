"""Settings that cannot be what they say are refused before anything starts."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from rebaser_server.settings.settings import StoreSettings


def test_tables_are_published_in_a_folder_and_in_no_object_store() -> None:
    assert StoreSettings.model_validate({"published": "tables"}).published == Path("tables")
    with pytest.raises(ValidationError, match="give its path, not a URI"):
        StoreSettings.model_validate({"published": "s3://bucket/tables"})
