"""Responses of HTTP/1.1 as a client reads them, without I/O: bytes in, a response out.

httptools finds the parts of a response. Its parser, llhttp, is strict: two lengths, a length beside chunks, a
folded header and a bare line feed are errors. Decided here is what it leaves open: how long a head may be and
how much may come in all, that a response without a length ends with its connection (llhttp would have to be
told of that, and httptools has no call for it), and what does not belong to the response that was asked for.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from kb_server.engine_client.errors import EngineBadAnswer

MAX_HEAD_BYTES = 64 * 1024
"""Of a response's head, with the provisional ones (1xx) before it."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of a response, as it comes: with its head and what frames its chunks."""


class RawResponse(msgspec.Struct, frozen=True):
    """An HTTP response, read whole. `content_type` is without parameters, `retry_after` the header's text."""

    status: int
    content_type: str
    body: bytes
    retry_after: str | None = None

    @property
    def is_success(self) -> bool:
        """Whether its status is one of 2xx."""
        return 200 <= self.status < 300


class ResponseReader:
    """Reads the responses of one connection, one for each request.

    state     bytes                                   end of the connection
    --------  --------------------------------------  ----------------------------------------
    head      head, again after a 1xx; then body      no response
    body      body; at its announced end: a response  a response where no length was announced,
                                                      else a fault
    complete  not reusable                            -

    After a fault the connection is of no more use.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self) -> None:
        """A request goes out: what comes from now on answers it."""
        self.received = 0
        self.in_body = False
        self.reusable = False
        """Whether the connection may carry another request, once the response is there."""
        self._body = bytearray()  # not a list of blocks: chunks of two bytes would fill it with objects
        self._response: RawResponse | None = None

    def feed(self, data: bytes) -> RawResponse | None:
        """The response when it is there whole; None while more of it is due.

        Raises:
            EngineBadAnswer: the bytes are not HTTP, too many, or in a coding that was not asked for.
        """
        self.received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.reusable = False
            if self._response is None:
                # Damaged on its way, perhaps: a mutation that was done answers its key again.
                words = f"It does not answer in HTTP as agreed ({type(error).__name__})."
                raise EngineBadAnswer(words, broke_off=True) from error
        if self.received > MAX_HEAD_BYTES and not self.in_body:
            raise EngineBadAnswer(f"The head of its answer is over {MAX_HEAD_BYTES} bytes.")
        if self.received > MAX_ANSWER_BYTES:
            raise EngineBadAnswer(f"Its answer is over {MAX_ANSWER_BYTES} bytes.")
        return self._checked() if self._response is not None else None

    def end(self) -> RawResponse | None:
        """The connection has ended: the response where that was its end, None where none had begun.

        Raises:
            EngineBadAnswer: it broke off.
        """
        if not self.in_body:
            return None
        if not self._until_end:
            raise self.broken_off()
        self.on_message_complete()
        return self._checked()

    @staticmethod
    def broken_off() -> EngineBadAnswer:
        """What is raised for a response that ended too early."""
        return EngineBadAnswer("Its answer broke off in the middle.", broke_off=True)

    def _checked(self) -> RawResponse | None:
        # `identity` was asked for. What is packed all the same would have to be unpacked within bounds, for
        # the sake of peers that do not keep to HTTP.
        if self._coding not in ("", "identity") and self._response is not None and self._response.body:
            raise EngineBadAnswer("Its answer is compressed, which was not asked for.")
        return self._response

    # --- what httptools calls ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is not None:
            self.reusable = False  # nobody asked for this one
            return
        self._content_type = self._coding = ""
        self._retry_after: str | None = None
        self._until_end = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            return  # a trailer
        match name.lower():
            case b"content-length":
                self._until_end = False
            case b"content-type":
                self._content_type = _media_type(value)
            case b"content-encoding":
                self._coding = value.decode("latin-1").strip().lower()
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"transfer-encoding":
                self._until_end = not value.lower().endswith(b"chunked")

    def on_headers_complete(self) -> None:
        if self._response is None and self._parser.get_status_code() >= 200:
            self.in_body = True
            self.reusable = self._parser.should_keep_alive()

    def on_body(self, block: bytes) -> None:
        self._body += block

    def on_message_complete(self) -> None:
        if self._response is None and self.in_body:
            status = self._parser.get_status_code()
            self._response = RawResponse(status, self._content_type, bytes(self._body), self._retry_after)


@lru_cache(maxsize=64)
def _media_type(value: bytes) -> str:
    return value.decode("latin-1").partition(";")[0].strip().lower()
