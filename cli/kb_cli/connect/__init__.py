"""`kb connect`: adds kb to the configuration of agents' clients, and removes it again.

clients.py    the supported clients, their configuration files, and the form of their entries
editing.py    one member of a JSON or TOML file inserted or removed; all other text is unchanged
command.py    the command: the difference, a confirmation, the file
"""

from __future__ import annotations

from kb_cli.commands import JSON, SETTINGS, Command, arg
from kb_cli.connect.clients import CLIENTS
from kb_cli.parts import Part

PART = Part(commands=(
    Command("connect", "run", "kb_cli.connect.connect_command:run",
            "configure an MCP client for kb, or list clients", (
        *SETTINGS,
        JSON,
        arg("client", nargs="?", choices=CLIENTS, metavar="CLIENT",
             help=f"{', '.join(CLIENTS)} (default: list them)"),
        arg("--endpoint", metavar="URL", help="URL of kb (default: as kb up serves it with the settings)"),
        arg("--api-key", metavar="KEY",
             help="key of kb (default: KB_MCP_API_KEY, not visible in process lists; or the present one)"),
        arg("--name", default="kb", help="name of kb in the client (default kb)"),
        arg("--toolsets", default="kb", metavar="NAMES",
             help="toolsets, comma-separated, with an entry for each (default kb)"),
        arg("--print", action="store_true",
             help="print the configuration without changing the client's file"),
        arg("--undo", action="store_true", help="remove the configuration"),
        arg("--yes", action="store_true", help="do not ask for confirmation"),
    ), ("server",)),
), check="kb_cli.connect.checking:clients")  # fmt: skip
