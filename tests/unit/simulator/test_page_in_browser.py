"""The page in a real browser: it works under its policy, and a person arms a fault and moves the clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.browser import CHROMIUM, Browser, opened
from tests.unit.simulator.parts import Running

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]


@pytest.fixture
async def browser(running: Running, tmp_path: Path) -> AsyncIterator[Browser]:
    async with opened(tmp_path, f"{running.simulator.control_url}/") as browser:
        yield browser


async def test_a_person_watches_arms_a_fault_and_moves_the_clock(running: Running, browser: Browser) -> None:
    """The page updates itself, its forms work, and no text of a note runs as script."""
    await browser.until("document.getElementById('pulse').textContent === 'live'")
    await running.note("<img src=x onerror='document.title=1'> granite")
    await browser.until("document.getElementById('live').innerText.includes('granite')")
    assert await browser.value("document.querySelectorAll('img').length") == 0
    await browser.value(
        "document.querySelector('form[action=\"/arm\"] [name=name]').value = 'not_ready';"
        "document.querySelector('form[action=\"/arm\"] [name=\"when.nth\"]').value = '1';"
        "document.querySelector('form[action=\"/arm\"] button').click()"
    )
    await browser.until("document.body.innerText.includes('Armed not_ready-1.')")
    assert (await running.search("granite")).status_code == 503
    await browser.value("document.querySelector('form[action=\"/advance\"] button').click()")
    await browser.until("document.body.innerText.includes('Moved on to 10 seconds.')")
    assert running.namespace.clock.elapsed() == 10
    await browser.until("document.getElementById('live').innerText.includes('503 not_ready')")
    await browser.value("document.querySelector('form[action=\"/disarm\"] button').click()")
    await browser.until("document.body.innerText.includes('Disarmed not_ready-1; it had fired 1 times.')")
    assert not running.namespace.faults
