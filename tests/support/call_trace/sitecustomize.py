"""Python runs this at its start where this folder is on PYTHONPATH: notes which files call into which.

A line a call of kb's code, in the file `<KB_CALL_TRACE>.<pid>`: when (monotonic nanoseconds), the file
called, and what called it, as its file and the number of its frame, or null where that is nothing of kb.
Calls within a file are not noted.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

PACKAGES = ("/kb_contracts/", "/kb_config/", "/kb_engine/", "/kb_readers/", "/kb_server/", "/mcp_aiohttp/")
RESUMED = 0x20 | 0x80 | 0x200  # generators and coroutines: each step of one is a call to the profiler
OWN_SCOPES = {"<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>"}


def is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" not in name and any(package in name for package in PACKAGES)


class Trace:
    def __init__(self, path: str) -> None:
        self._path = Path(f"{path}.{os.getpid()}")
        self._begun: dict[int, FrameType] = {}  # held, so that no other frame gets its number

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not is_ours(frame) or frame.f_code.co_name in OWN_SCOPES:
            return
        if frame.f_code.co_flags & RESUMED:
            if id(frame) in self._begun:
                return
            self._begun[id(frame)] = frame
        caller = frame.f_back
        while caller is not None and not is_ours(caller):
            caller = caller.f_back
        file = frame.f_code.co_filename
        if caller is not None and caller.f_code.co_filename == file:
            return
        by = [caller.f_code.co_filename, id(caller)] if caller is not None else None
        with self._path.open("a") as out:
            out.write(json.dumps([time.monotonic_ns(), file, by]) + "\n")


if path := os.environ.get("KB_CALL_TRACE"):
    trace = Trace(path)
    sys.setprofile(trace)
    threading.setprofile(trace)
