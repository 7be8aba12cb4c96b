"""The model of the language detector, kept unpacked in the user's cache.

Unpacking py3langid's model takes half a second and 100 MB of memory in every process. The arrays for some
languages are therefore written once to a folder, and mapped into memory by each later process:

    $XDG_CACHE_HOME/kb/languages/<digest of the model and the languages>/<name>.npy    48 MB in all

Without a folder that can be written, or with little room, nothing is kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from kb_engine.disk import sync

logger = logging.getLogger(__name__)

_LAYOUT = 1
_ARRAYS = ("tk_nextmove", "tk_row", "tk_output", "nb_classes", "nb_pc", "nb_ptc")
"""Attributes of the detector, and names of the files."""
_FREE_BYTES = 1 << 30
"""Minimum free space for keeping the arrays, in bytes."""


def detector(languages: Collection[str]) -> Any:
    """Return py3langid's detector for some languages, from the cache if it is there."""
    from py3langid.langid import MODEL_DIR, MODEL_FILE, LanguageIdentifier

    folder = _folder(MODEL_DIR / MODEL_FILE, languages)
    if folder is not None:
        try:
            return _mapped(folder, LanguageIdentifier)
        except FileNotFoundError:  # not kept yet, or removed meanwhile
            pass
        except (OSError, ValueError, EOFError):  # damaged
            shutil.rmtree(folder, ignore_errors=True)
    made = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    made.set_languages(languages)
    if folder is not None:
        try:
            _keep(folder, ((name, np.asarray(getattr(made, name))) for name in _ARRAYS))
            return _mapped(folder, LanguageIdentifier)
        except (OSError, ValueError, EOFError) as error:
            logger.debug("the language model is not kept", extra={"reason": str(error)})
    return made


def _folder(model: Path, languages: Iterable[str]) -> Path | None:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:  # the user has no home
        return None
    if not cache.is_absolute():
        return None
    digest = hashlib.sha256(f"{_LAYOUT} {sorted(languages)} ".encode() + model.read_bytes())
    return cache / "kb" / "languages" / digest.hexdigest()[:32]


def _mapped(folder: Path, identifier: Any) -> Any:
    """Map the kept arrays. Raises OSError, ValueError, EOFError: some are missing or damaged."""
    kept = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in _ARRAYS}
    # Memoryviews, whose items are integers of Python, are read as fast as lists.
    steps, rows = kept["tk_nextmove"].data, kept["tk_row"].data
    weights = kept["nb_ptc"], kept["nb_pc"], kept["nb_classes"].tolist()
    return identifier(*weights, steps, kept["tk_output"].tolist(), norm_probs=True, tk_row=rows)


def _keep(folder: Path, arrays: Iterable[tuple[str, Any]]) -> None:
    """Write the arrays to a folder, which appears when complete; remove other models. Raises OSError."""
    place = folder.parent
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if shutil.disk_usage(place).free < _FREE_BYTES:
        return
    others = [each for each in place.iterdir() if each != folder and not each.name.startswith("new-")]
    new = Path(mkdtemp(prefix="new-", dir=place))
    try:
        for name, array in arrays:
            np.save(new / f"{name}.npy", array)
            sync(new / f"{name}.npy")
        new.rename(folder)  # refused if another process was faster
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for each in others:
        shutil.rmtree(each, ignore_errors=True)
