"""The settings of the pages."""

from __future__ import annotations

from typing import Annotated

from kb_config.parts import PartSettings
from kb_config.settings import Setting


class PagesSettings(PartSettings, frozen=True, kw_only=True):
    """The switch of the pages."""

    pages: Annotated[bool, Setting("KB_PAGES", "serve web pages for people at /")] = True

    @property
    def is_on(self) -> bool:
        """True unless they are switched off."""
        return self.pages
