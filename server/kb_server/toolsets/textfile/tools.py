"""The two tools over one text: what there is, and all of it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kb_server.tool import Annotations, Call, NoArguments, Tool
from kb_server.toolsets.textfile.source import HeldText

READ = Annotations(read_only=True, idempotent=True)
MAX_RESULT_CHARS = 500_000
"""As much as clients that keep to the hint take; the content itself is never cut."""


class TextInfo(msgspec.Struct, rename="camel"):
    """What is known of the text without reading it."""

    file_size_bytes: Annotated[int, Meta(ge=0, description="size of the file in bytes")]
    content_length: Annotated[
        int, Meta(ge=0, description="length of the content in characters (code points)")
    ]
    is_available: Annotated[bool, Meta(description="whether get_kb_content has content to give")]
    description: Annotated[str, Meta(description="what the text is about")]
    last_modified: Annotated[
        str | None, Meta(description="when the file was last changed, RFC 3339 in UTC; null: not known")
    ] = None


class KbInfo(msgspec.Struct):
    """The result of `get_kb_info`."""

    status: Annotated[
        Literal["available", "unavailable"], Meta(description="unavailable: get_kb_content tells why")
    ]
    info: TextInfo


class KbContent(msgspec.Struct, rename="camel"):
    """The result of `get_kb_content`. A member that does not belong to the status is absent, not null."""

    status: Annotated[
        Literal["ok", "empty", "error"], Meta(description="empty: the file was read and has no content")
    ]
    content_length: (
        Annotated[int, Meta(ge=0, description="characters (code points) in content; absent on error")]
        | UnsetType
    ) = UNSET
    content: Annotated[str, Meta(description="the whole text; absent on error")] | UnsetType = UNSET
    error: Annotated[str, Meta(description="what went wrong; only on error")] | UnsetType = UNSET


class GetKbInfoTool(Tool[NoArguments, KbInfo]):
    """Size, length, age and subject of the text."""

    name: ClassVar = "get_kb_info"
    title: ClassVar = "About the knowledge base text"
    description: ClassVar = (
        "Tells whether the knowledge base text is available, what it is about, its size in bytes, its "
        "length in characters and when it was last modified. Call it first: it is cheap, and tells whether "
        "the whole text is worth fetching with get_kb_content and fits your context."
    )
    annotations: ClassVar = READ
    arguments: ClassVar = NoArguments
    result: ClassVar = KbInfo

    def __init__(self, held: HeldText, about: str) -> None:
        """`about` says what the text is about."""
        self._held = held
        self._about = about

    async def run(self, _arguments: NoArguments, call: Call) -> KbInfo:
        """The facts; where there is no text, `unavailable` and zeros."""
        text = self._held.text
        call.log["kb_status"] = "available" if text else "unavailable"
        if text is None:
            return KbInfo("unavailable", TextInfo(0, 0, is_available=False, description=self._about))
        facts = TextInfo(text.size, len(text.content), True, self._about, _rfc3339(text.modified))
        return KbInfo("available", facts)


class GetKbContentTool(Tool[NoArguments, KbContent]):
    """The whole text."""

    name: ClassVar = "get_kb_content"
    title: ClassVar = "The whole knowledge base text"
    description: ClassVar = (
        "Returns the whole knowledge base text, unmodified and in one piece, with its length in characters. "
        "There is no search and no paging: ask get_kb_info first when the text may be long. The text is read "
        "once when the server starts, so asking again gives the same answer."
    )
    annotations: ClassVar = READ
    arguments: ClassVar = NoArguments
    result: ClassVar = KbContent
    max_result_chars: ClassVar = MAX_RESULT_CHARS

    def __init__(self, held: HeldText) -> None:
        self._held = held

    async def run(self, _arguments: NoArguments, call: Call) -> KbContent:
        """The text, or in words why there is none; a failure is a result, so that no client drops it."""
        result = self._result()
        call.log["kb_status"] = result.status
        if result.content_length is not UNSET:
            call.log["content_length"] = result.content_length
        return result

    def _result(self) -> KbContent:
        text = self._held.text
        if text is None:
            return KbContent("error", error=self._held.reason)
        status: Literal["ok", "empty"] = "ok" if text.content else "empty"
        return KbContent(status, content_length=len(text.content), content=text.content)


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
