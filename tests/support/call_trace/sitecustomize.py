"""A profiler that records calls between files; Python imports it at start if this folder is on PYTHONPATH.

The file `<KB_CALL_TRACE>.<pid>` gets one line for each call of kb's code: the time (monotonic nanoseconds),
the called file, and the caller, as its file and frame number, or null if the caller is not kb's code. Calls
within a file are not recorded.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

PACKAGES = (
    "/kb_contracts/",
    "/kb_http/",
    "/kb_config/",
    "/kb_engine/",
    "/kb_readers/",
    "/kb_server/",
    "/mcp_aiohttp/",
)
RESUMED = 0x20 | 0x80 | 0x200  # generators and coroutines: the profiler sees each step as a call
OWN_SCOPES = {"<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>"}


def is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "site-packages" not in name and any(package in name for package in PACKAGES)


class Trace:
    def __init__(self, path: str) -> None:
        self._path = Path(f"{path}.{os.getpid()}")
        self._begun: dict[int, FrameType] = {}  # keeps the frames alive, so that no id is reused

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
