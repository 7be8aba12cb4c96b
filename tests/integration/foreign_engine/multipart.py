"""The parts of a multipart body: one file, and fields."""

from __future__ import annotations

import re

from .promise import Refused


def parts(data: bytes, boundary: bytes) -> tuple[tuple[str, bytes] | None, dict[str, str]]:
    """The file with its name, and the fields, of a multipart body.

    Raises:
        Refused: it is not multipart, breaks off, or gives something twice.
    """
    broken = Refused("invalid_request", "The body is not multipart, or broke off.")
    mark, file, fields = b"--" + boundary, None, {}
    if not data.startswith(mark):
        raise broken
    at = len(mark)
    while data[at : at + 2] != b"--":
        head = data.find(b"\r\n\r\n", at)
        end = data.find(b"\r\n" + mark, head + 2)
        if data[at : at + 2] != b"\r\n" or head < 0 or end < 0:
            raise broken
        try:
            heading = data[at:head].decode()
        except UnicodeDecodeError as error:
            raise Refused("invalid_parameter", "A filename is UTF-8.", parameter="file") from error
        try:
            named = dict(re.findall(r'(name|filename)="([^"]*)"', heading))
            content = data[head + 4 : end]
            name = named["name"]
            if name == "file":
                if file is not None:
                    raise Refused("invalid_parameter", "Send one file.", parameter="file")
                last = re.split(r"[/\\]", named.get("filename", ""))[-1]
                file = ("" if last in {".", ".."} else last, content)
            elif name in fields:
                raise Refused("invalid_parameter", f"{name} is given twice.", parameter=name)
            else:
                fields[name] = content.decode()
        except (UnicodeDecodeError, KeyError) as error:
            raise broken from error
        at = end + 2 + len(mark)
    return file, fields
