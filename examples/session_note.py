"""Save a conversation of Claude Code as a note when it ends: a hook for its event SessionEnd.

In `~/.claude/settings.json`, with the paths of this file and of kb:

    {"hooks": {"SessionEnd": [{"hooks": [
        {"type": "command", "command": "python3 /path/to/session_note.py /path/to/kb"}]}]}}

The note has the requests of the user and the last answer of the agent. It goes to the collection `memory`
with the tag `session`; a conversation that is continued and ends again replaces its note.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REQUEST_CHARS = 500
"""Maximum length of a request in the note, in characters."""
ANSWER_CHARS = 20_000
"""Maximum length of the answer in the note, in characters."""
TITLE_CHARS = 100
"""Maximum length of the title, which is the first request, in characters."""


def text_of(line: dict[str, Any]) -> str:
    """Return the text of a line of a transcript; "" for calls of tools and their results."""
    content = line.get("message", {}).get("content", "")
    if isinstance(content, str):
        return content.strip()
    return "\n".join(part["text"] for part in content if part.get("type") == "text").strip()


def note_of(transcript: Path) -> str | None:
    """Return the text of the note; None if the agent has not answered."""
    lines = [json.loads(line) for line in transcript.read_text("utf-8").splitlines() if line.strip()]
    spoken = [line for line in lines if not (line.get("isMeta") or line.get("isSidechain"))]
    requests = [text_of(line) for line in spoken if line.get("type") == "user" and text_of(line)]
    answers = [text_of(line) for line in spoken if line.get("type") == "assistant" and text_of(line)]
    if not (requests and answers):
        return None
    asked = "\n".join(f"- {' '.join(request.split())[:REQUEST_CHARS]}" for request in requests)
    title = " ".join(requests[0].split())[:TITLE_CHARS]
    return f"# {title}\n\n## Asked\n\n{asked}\n\n## Last answer\n\n{answers[-1][:ANSWER_CHARS]}\n"


def main() -> int:
    event = json.load(sys.stdin)
    transcript = Path(event["transcript_path"])
    note = note_of(transcript) if transcript.exists() else None  # there is none without a request
    if note is None:
        return 0
    add = ["addnote", "-", "--collection", "memory", "--tags", "session", "--no-wait", "--source-path"]
    command = [*(sys.argv[1:] or ["kb"]), *add, f"claude-code/{event['session_id']}"]
    return subprocess.run(command, input=note, text=True, encoding="utf-8").returncode


if __name__ == "__main__":
    sys.exit(main())
