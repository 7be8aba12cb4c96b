"""The transport to an engine in this process: requests are handed over without a socket.

The layers above, from the operations to the attempts, are the same as over HTTP, and so are the faults:
responses are read by the same readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import hdrs, web

from kb_http.direct import DirectCalls
from kb_http.downloads import FileResponse
from kb_http.requests import SentFile
from kb_server.engine_client.errors import EngineTimeout, EngineUnreachable
from kb_server.engine_client.http1 import BodyStream, RawResponse, ResponseReader
from kb_server.engine_client.multipart import FILE_TYPE, MultipartFile
from kb_server.engine_client.transport import EngineRequest


class DirectExchange:
    """An `Exchange` with an engine in this process, which other processes reach at `url`."""

    def __init__(self, calls: DirectCalls, url: str) -> None:
        self._calls = calls
        self._url = url

    async def close(self) -> None:
        """Do nothing: there is no connection, and abandoned calls end with the engine."""

    async def exchange(self, request: EngineRequest) -> RawResponse:
        """Call the operation.

        Silence is the time without an answer, or without a block of its file being taken.

        Raises:
            EngineTimeout: silence.
            EngineUnreachable: the engine has stopped.
            OSError: the file cannot be read.
        """
        request.has_left = True
        if request.file is None:
            call = self._begin(request)
            if not (await asyncio.wait((call,), timeout=request.read_timeout))[0]:
                raise _timeout(request)
            if request.stream is not None and not call.cancelled():
                response = call.result()
                if isinstance(response, FileResponse):
                    return await _passed_on(response, request.stream, request)
            return self._response_of(call)
        sending = _Sending(request.file)
        async with aclosing(sending.blocks()) as blocks:
            call = self._begin(request, sending.file_of(blocks))
            try:
                while not call.done():
                    if (left := sending.moved + request.read_timeout - sending.now()) <= 0:
                        raise _timeout(request)
                    await asyncio.wait((call,), timeout=left)
            finally:
                if not (call.done() or sending.is_whole):
                    call.cancel()  # over HTTP its connection would break
                    await asyncio.wait((call,))
        if sending.failure is not None:
            raise sending.failure
        return self._response_of(call)

    def _begin(self, request: EngineRequest, file: SentFile | None = None) -> asyncio.Task[web.Response]:
        return self._calls.begin(
            request.operation,
            path=request.path,
            query=request.query,
            headers=request.headers,
            json=request.json,
            file=file,
        )

    def _response_of(self, call: asyncio.Task[web.Response]) -> RawResponse:
        if call.cancelled():
            raise EngineUnreachable("it has stopped", url=self._url)
        response = call.result()
        assert isinstance(response.body, bytes), "operations return encoded responses"
        retry_after = response.headers.get(hdrs.RETRY_AFTER)
        return RawResponse(response.status, response.content_type, response.body, retry_after)


async def _passed_on(response: FileResponse, stream: BodyStream, request: EngineRequest) -> RawResponse:
    """Pass a file on, block by block.

    Raises EngineTimeout if it is not taken, EngineBadAnswer if it breaks off.
    """
    async with aclosing(response.blocks) as blocks:
        try:
            async for block in blocks:
                stream.put(block)
                async with asyncio.timeout(request.read_timeout):
                    await stream.taken()
        except TimeoutError:
            raise _timeout(request) from None
        except Exception as error:  # any failure of the engine, as over HTTP when the connection breaks
            raise ResponseReader.broken_off() from error
    return RawResponse(response.status, response.content_type, b"")


def _timeout(request: EngineRequest) -> EngineTimeout:
    return EngineTimeout(f"It sent no data for {request.read_timeout:g} s.")


class _Sending:
    """A file being sent. `moved` is the time its last block was taken, `failure` the error that ended it."""

    def __init__(self, file: MultipartFile) -> None:
        self._file = file
        self.now = asyncio.get_running_loop().time
        self.moved = self.now()
        self.is_whole = False
        self.failure: Exception | None = None

    def file_of(self, blocks: AsyncGenerator[bytes, None]) -> SentFile:
        file = self._file
        return SentFile(file.filename, FILE_TYPE, file.source.size, blocks, file.texts)

    async def blocks(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._file.blocks()) as blocks:
                async for block in blocks:
                    yield block
                    self.moved = self.now()
        except Exception as error:
            self.failure = error
            raise ConnectionAbortedError("the file arrived incomplete") from error
        self.is_whole = True
