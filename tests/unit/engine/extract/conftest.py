"""The models of the recognizer, loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest


@pytest.fixture(scope="session")
def loaded_models() -> Iterator[Callable[[], None]]:
    """Load the models once for all tests of this process; yields a function that forgets them."""
    from kb_engine.extract import pictures  # needs the recognizer's packages

    models = cache(pictures._load_models)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "_load_models", models)
        yield models.cache_clear
