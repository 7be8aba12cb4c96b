"""Write the bundle of kb for Claude Desktop (MCPB, manifest 0.4) beside the wheel that `make dist` built.

    python deploy/bundle.py FOLDER

It contains the wheel itself; uv installs that and its dependencies at the first start. Name, version and
description are those of pyproject.toml. A setting that is left empty counts as not set.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

_START = "import sys\n\nfrom kb_cli.main import main\n\nsys.exit(main(['stdio']))\n"
_SETTINGS = {
    "KB_HOME": ("directory", "Data folder", "The folder of the knowledge base (empty: the folder of kb up)"),
    "KB_ENGINE_URL": ("string", "Engine", "The URL of an engine elsewhere (empty: the data folder's engine)"),
    "KB_API_KEY": ("string", "Key of the engine", "The key of that engine, if it needs one"),
}


def bundled(project: dict[str, object], wheel: Path) -> dict[str, bytes]:
    """Return the files of a bundle by their names."""
    manifest = {
        "manifest_version": "0.4",
        **{key: project[key] for key in ("name", "version", "description", "license", "keywords")},
        "display_name": "kb",
        "author": {"name": "kb"},
        "server": {
            "type": "uv",
            "entry_point": "main.py",
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--directory", "${__dirname}", "main.py"],
                "env": {name: f"${{user_config.{name.lower()}}}" for name in _SETTINGS},
            },
        },
        "tools_generated": True,
        "prompts_generated": True,
        "compatibility": {
            "platforms": ["darwin", "linux"],
            "runtimes": {"python": project["requires-python"]},
        },
        "user_config": {
            name.lower(): {
                "type": kind,
                "title": title,
                "description": text,
                "default": "",
                "required": False,
                **({"sensitive": True} if name.endswith("_KEY") else {}),
            }
            for name, (kind, title, text) in _SETTINGS.items()
        },
    }
    environment = (
        f'[project]\nname = "bundle"\nversion = "{project["version"]}"\n'
        f'requires-python = "{project["requires-python"]}"\n'
        f'dependencies = ["{project["name"]}[server,engine]"]\n\n'
        f'[tool.uv.sources]\n{project["name"]} = {{ path = "{wheel.name}" }}\n'
    )
    return {
        "manifest.json": json.dumps(manifest, indent=2).encode(),
        "pyproject.toml": environment.encode(),
        "main.py": _START.encode(),
        wheel.name: wheel.read_bytes(),
    }


def main(folder: Path) -> None:
    """Write `NAME-VERSION.mcpb` into the folder that has the wheel of that version."""
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    name, version = project["name"], project["version"]
    wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    files = bundled(project, wheel)
    with ZipFile(folder / f"{name}-{version}.mcpb", "w") as archive:
        for path, content in files.items():
            archive.writestr(ZipInfo(path), content, ZIP_DEFLATED)  # ZipInfo has a fixed date


if __name__ == "__main__":
    main(Path(sys.argv[1]))
