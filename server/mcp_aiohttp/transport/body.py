"""The body of a request: read up to a limit, within bounds of time, and never beyond."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from mcp_aiohttp.options import BodyLimits
from mcp_aiohttp.protocol.jsonrpc import PARSE_ERROR
from mcp_aiohttp.protocol.refusal import (
    BODY_TIMEOUT,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    Refusal,
)


def check_announced(request: web.Request, limits: BodyLimits) -> None:
    """Refuse by the headers alone what need not be read.

    Raises:
        Refusal: 415 where the body is not announced as plain JSON, 413 where it is announced too long.
    """
    if request.content_type != "application/json" or hdrs.CONTENT_TYPE not in request.headers:
        raise _wrong_type("Send the message as `Content-Type: application/json`.")
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
        raise _wrong_type("Send the message without a Content-Encoding.")
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8"):
        raise _wrong_type("Send the message in UTF-8.")
    if request.content_length is not None and request.content_length > limits.max_bytes:
        raise _too_large(limits)


async def read_body(request: web.Request, limits: BodyLimits) -> bytes:
    """The whole body; reading stops at the limit.

    Raises:
        Refusal: 413 over the limit, 408 where it stopped coming, 400 where its framing is broken.
    """
    if request.content.is_eof():  # came whole with its headers, as nearly all do
        return _within(request.content.read_nowait(), limits)
    pieces: list[bytes] = []
    length = 0
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.total
    try:
        async with asyncio.timeout(limits.silence) as patience:
            async for piece in request.content.iter_any():
                length += len(piece)
                if length > limits.max_bytes:
                    raise _too_large(limits)
                pieces.append(piece)
                patience.reschedule(min(loop.time() + limits.silence, deadline))
    except TimeoutError:
        raise _broken(408, BODY_TIMEOUT, "body_timeout", "The body of the message stopped coming.") from None
    except web.RequestPayloadError:
        raise _broken(400, PARSE_ERROR, "parse_error", "The body of the request is broken.") from None
    return b"".join(pieces)


def _within(body: bytes, limits: BodyLimits) -> bytes:
    if len(body) > limits.max_bytes:
        raise _too_large(limits)
    return body


def _wrong_type(message: str) -> Refusal:
    return _broken(415, UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)


def _too_large(limits: BodyLimits) -> Refusal:
    message = f"The message is larger than {limits.max_bytes} bytes, the limit on one message."
    return _broken(413, MESSAGE_TOO_LARGE, "message_too_large", message, limit_bytes=limits.max_bytes)


def _broken(status: int, code: int, error_type: str, message: str, **details: int) -> Refusal:
    # The rest of the body is not wanted, so the connection cannot carry another request.
    return Refusal(status, code, error_type, message, close=True, details=details)
