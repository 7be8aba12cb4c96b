"""Every command of a page is run by a test, or listed with the reason for its exclusion."""

from __future__ import annotations

import re

import pytest

from tests.support.page_commands import NOT_RUN, PAGES, blocks_of, commands_of

PROGRAMS = "claude curl docker docker-compose git kb kubectl locust make pip pytest python python3 systemctl"
COMMAND = re.compile(
    rf"(?:[A-Z_]+=\S+ )*(?:\$ |export |(?:\.venv/bin/)?(?:{PROGRAMS.replace(' ', '|')}) [a-z-])"
)
"""Beginning of a shell line."""


def test_each_command_listed_as_not_run_is_in_its_page() -> None:
    listed = {(page, command) for page, commands in NOT_RUN.items() for command in commands}
    assert listed - {(page, command) for page in PAGES for command in commands_of(page)} == set()
    assert all(reason for commands in NOT_RUN.values() for reason in commands.values())


@pytest.mark.parametrize("page", PAGES)
def test_commands_stand_in_blocks_of_the_shell(page: str) -> None:
    """Other blocks are not tested. A table of figures may have a row that begins with a command."""
    hidden = [
        block.body
        for block in blocks_of(page)
        if block.language not in ("sh", "python") and all(COMMAND.match(line) for line in block.commands())
    ]
    assert hidden == []


def test_a_block_is_read_with_its_language_comments_and_joined_lines() -> None:
    [*blocks] = blocks_of("docs/limits.md")
    [command] = [command for block in blocks for command in block.commands() if "pytest" in command]
    assert command.endswith('tests/faults/test_engine_kill.py -k "real or qdrant or Qdrant"')
    assert "kb check --repair" in commands_of("docs/backup.md")
