"""Authentication: the keys of the key file, of the settings, and of the data folder's owner."""

from __future__ import annotations

from kb_config.settings import SettingsError
from kb_contracts.access.keys import KeyRing, KeysDamaged
from kb_contracts.access.local import make_local_token
from kb_engine.settings import EngineSettings


def key_ring(settings: EngineSettings) -> KeyRing:
    """Return the keys of an engine; its data folder must exist.

    Raises:
        SettingsError: the file of keys cannot be used.
        OSError: the owner's key cannot be written.
    """
    try:
        return KeyRing(
            settings.keys_file,
            {"KB_API_KEY": settings.api_key},
            local=make_local_token(settings.folder),
        )
    except KeysDamaged as error:
        raise SettingsError(f"KB_KEYS: {error}") from error
