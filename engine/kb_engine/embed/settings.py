"""What the settings of an embedder have in common, whichever it is."""

from __future__ import annotations

from collections.abc import Iterator

from kb_config.settings import Settings


class OwnSettings(Settings, frozen=True, kw_only=True):
    """The parent of the settings of one embedder."""

    def check(self) -> None:
        """Raises SettingsError where the embedder cannot be made with these settings."""

    def warnings(self, *, chosen: bool) -> Iterator[str]:
        """What is wrong with these settings without being refused; `chosen`: this embedder is used."""
        raise NotImplementedError
