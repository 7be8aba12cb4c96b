"""The upload URL: `PUT /uploads/<token>` with the file's raw bytes, such as `curl -g -T report.pdf URL`.

`DELETE` on it aborts the upload.

The token is the only key to it and must stay out of logs. There are no CORS headers, so that no web page
elsewhere can use a URL that it got hold of. Imported by HTTP hosting alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import hdrs, web
from aiohttp.http_exceptions import ContentEncodingError

from kb_server.uploads.service import Uploads
from kb_server.uploads.upload import UploadError

PATH = "/uploads/{token}"
"""The path that hosting logs in place of the token."""

_READ_BYTES = 1 << 18
_MAX_TOKEN = 128


def routes(uploads: Callable[[], Uploads]) -> Sequence[web.RouteDef]:
    """Return the routes; `uploads` is called on the first request."""

    async def serve(request: web.Request) -> web.StreamResponse:
        token = request.match_info["token"][:_MAX_TOKEN]
        try:
            if request.method == hdrs.METH_PUT:
                upload = await uploads().receive(token, request.content_length, _body(request))
                return _json(
                    201,
                    upload_id=upload.id,
                    received_bytes=upload.total_size,
                    next="Call kb_upload_finish with this upload_id.",
                )
            if request.method == hdrs.METH_DELETE:
                upload = await uploads().abort_by_token(token)
                return _json(200, upload_id=upload.id, next="It was discarded.")
        except UploadError as error:
            return _json(error.status, **error.payload())
        words = (
            "Send the file with PUT, its bytes as the body: curl -g -T FILE 'URL'. DELETE aborts the upload."
        )
        response = _json(405, error="method_not_allowed", message=words)
        response.headers[hdrs.ALLOW] = "PUT, DELETE"
        return response

    return [web.route(hdrs.METH_ANY, PATH, serve)]


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    try:
        async for block in request.content.iter_chunked(_READ_BYTES):
            yield block
    except (web.RequestPayloadError, ConnectionError) as error:
        if isinstance(error.__cause__, ContentEncodingError) or isinstance(error, ContentEncodingError):
            coding = request.headers.get(hdrs.CONTENT_ENCODING, "")[:40]
            raise UploadError(
                "body_malformed",
                f"The body is not {coding}, as its header Content-Encoding says; it was discarded. Send it "
                "unencoded, without the header.",
            ) from error
        raise UploadError(
            "body_incomplete", "The body broke off and was discarded. Send it again."
        ) from error


def _json(status: int, **members: Any) -> web.Response:
    response = web.Response(body=msgspec.json.encode(members), status=status, content_type="application/json")
    if status >= 400:
        response.force_close()  # the rest of a refused body is not read
    return response
