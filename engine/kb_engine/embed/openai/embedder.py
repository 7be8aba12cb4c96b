"""An embedder behind an OpenAI-compatible endpoint: Ollama, vLLM, TEI, llama.cpp, OpenAI and similar.

    load    a few texts of our own ──▶ the dimensions, and the range of cosines
    embed   texts, each cut to the model's window ──▶ batches ──▶ vectors of length 1
            a refused batch ──▶ one text at a time ──▶ half of it, a quarter ... ──▶ TextRefused

Nothing is retried here: an outage is reported at once, and the caller decides. An endpoint's error message is
passed on only for texts of our own, since it may quote the request.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock

import msgspec
import numpy as np
from numpy.typing import NDArray

from kb_engine.embed.openai.answer import BadAnswer, WrongLength, vectors_of
from kb_engine.embed.openai.openai_settings import MOST_DIMENSIONS, OpenAISettings
from kb_engine.embed.own_model import as_setting, scoring_for
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, TextRefused
from kb_engine.endpoint.client import EndpointThread, EndpointUnavailable, NoAnswer, Reply, words_of
from kb_engine.index.port import Vectors

logger = logging.getLogger(__name__)

_QUERY_SECONDS = 15.0  # time-out of a query, for which a user waits; that of a batch is a setting
_REST_SECONDS = 5.0  # backoff after a failure
_BATCH_CHARS = 100_000
_BYTES_A_NUMBER = 48  # sign, 17 digits, exponent, comma, and the indent of pretty-printed JSON
_BYTES_BESIDE = 256 * 1024
_LESS_AT_ONCE = 4  # factor by which a batch shrinks after a time-out
_SHORTEST = 64  # a text of at most this many characters is not refused for its length
_PROBE = "kb"
_BLANK = "."  # sent for an empty text, which most endpoints refuse
# Parts of messages with status 500 about a text that is longer than the endpoint allows, or for which its
# model produces NaN.
_ITS_FAULT = (b"too large", b"too long", b"too big", b"context length", b"context size", b"unsupported value")

_LETTERS_A_TOKEN = 3
_MARKS = 2
_WORD = re.compile(r"[A-Za-z]+")
_WEIGHTS = (
    (1, re.compile(r"[0-9!-/:-@\[-`{-~\x80-\u07ff]")),
    (2, re.compile(r"[\u0800-\uabff\ud7a4-\uffff]")),
    (3, re.compile(r"[\uac00-\ud7a3]")),
    (4, re.compile(r"[\U00010000-\U0010ffff]")),
)


class OpenAIEmbedder(Embedder):
    """The model of one endpoint. Its dimensions are known once it has answered, or by `expect`.

    The constants of the score come from the settings, or are measured at loading; before that they are
    MiniLM's.
    """

    device = "remote"
    queries_at_once = 16

    def __init__(self, settings: OpenAISettings) -> None:
        """Raises SettingsError if the settings name no endpoint."""
        settings.check()
        self._settings = settings
        self._endpoint = EndpointThread(settings.embeddings_url, settings.embedding_key)
        self._lock = Lock()
        self._at_once = settings.embedding_batch
        self._query_seconds = min(_QUERY_SECONDS, settings.embedding_timeout)
        self.name = settings.base_name(f"openai:{settings.embedding_model}")
        self.dimensions = settings.embedding_dimensions
        self.max_tokens = settings.embedding_max_tokens
        self.batch_size = settings.embedding_batch
        self.scoring = scoring_for(None, settings.chosen_scoring)
        self.loaded = False

    def expect(self, dimensions: int) -> None:
        self.dimensions = dimensions or self.dimensions

    def load(self) -> None:
        """Embed a few texts to probe the endpoint; does nothing after a success."""
        with self._lock:
            if self.loaded:
                return
            settings = self._settings
            questions, passages = settings.probes()
            self._prove_in_order(settings.embedding_timeout)
            vectors = self._in_batches([*questions, *passages])
            cosines = vectors[: len(questions)] @ vectors[len(questions) :].T
            self.scoring = scoring_for(cosines, settings.chosen_scoring)
            self.loaded = True
        logger.info(
            "the embedding endpoint answers",
            extra={
                "model": settings.embedding_model,
                "dimensions": self.dimensions,
                "scoring": as_setting(self.scoring),
            },
        )

    def count_tokens(self, text: str) -> int:
        return estimated_tokens(self._settings.embedding_document_prefix + text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per passage; a passage beyond the window is truncated."""
        self.load()
        prefix = self._settings.embedding_document_prefix
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        return self._in_batches([self._within_window(prefix, text) for text in texts])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a query, with the prefix of queries; the time-out is at most 15 seconds."""
        self.load()
        query = self._within_window(self._settings.embedding_query_prefix, text)
        try:
            vector: NDArray[np.float32] = self._vectors([query], self._query_seconds)[0]
        except _Late as error:
            # Back off: further queries would each wait for the same time-out.
            raise EmbedderUnavailable(str(error), retry_after=_REST_SECONDS) from error
        return vector

    def close(self) -> None:
        self._endpoint.close()

    def _within_window(self, prefix: str, text: str) -> str:
        room = self.max_tokens - estimated_tokens(prefix)
        return prefix + (cut(text, max(room, 1)) if text.strip() else _BLANK)

    def _in_batches(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, in batches whose size adapts to the endpoint.

        The size shrinks after a time-out and grows again by one per successful batch: a slow endpoint gets
        small batches, and one that hung for a moment soon gets large ones again.
        """
        rows = []
        for batch in _batches(texts, self._at_once):
            try:
                rows.append(self._vectors(batch, self._settings.embedding_timeout))
            except _Late:
                self._ask_for_less(len(batch))
                raise
            self._at_once = min(self._at_once + 1, self._settings.embedding_batch)
        return np.concatenate(rows)

    def _ask_for_less(self, sent: int) -> None:
        self._at_once = max(1, min(self._at_once, sent) // _LESS_AT_ONCE)

    def _vectors(self, texts: list[str], seconds: float) -> Vectors:
        """Return the vectors of texts; after a refused batch, text by text, truncated until accepted."""
        try:
            return self._ask(texts, seconds)
        except _Refused as refused:
            self._prove_in_order(self._query_seconds)
            if len(texts) > 1:
                self._ask_for_less(len(texts))  # the batch may have been too large
                return np.concatenate([self._vectors([text], seconds) for text in texts])
            return self._vector_of_beginning(texts[0], refused, seconds)

    def _vector_of_beginning(self, text: str, refused: _Refused, seconds: float) -> Vectors:
        """Embed a text that was refused, truncated as far as needed.

        Some endpoints refuse texts longer than the model's window. Some models fail on a whole text and
        succeed on a part of it.
        """
        length = len(text)  # the whole text first: the failure may have been temporary
        while True:
            try:
                vector = self._ask([text[:length]], seconds)
            except _Refused as again:
                refused = again
            else:
                break
            if length <= _SHORTEST:
                where = self._settings.embeddings_url
                raise TextRefused(f"{where} {refused.what} for one text, also in part, and takes others")
            length = max(_SHORTEST, length // 2)
        if length < len(text):
            logger.warning(
                "a passage is embedded only in part; if it was too long, lower KB_EMBEDDING_MAX_TOKENS",
                extra={"why": refused.what, "characters": len(text), "embedded": length},
            )
        return vector

    def _prove_in_order(self, seconds: float) -> None:
        """Raise EmbedderUnavailable if the endpoint refuses even a short plain text."""
        try:
            self._ask([_PROBE], seconds, ours=True)
        except _Refused as refused:
            raise self._out_of_order(refused.what, refused.words) from None

    def _ask(self, texts: list[str], seconds: float, *, ours: bool = False) -> Vectors:
        """Send one request. Raises EmbedderUnavailable, or _Refused if another request may succeed.

        The endpoint's error message is reported only for texts that are `ours`: it may quote the request.
        """
        body: dict[str, object] = {
            "model": self._settings.embedding_model,
            "input": texts,
            "encoding_format": "float",
        }
        if self._settings.embedding_dimensions:
            body["dimensions"] = self._settings.embedding_dimensions
        numbers = len(texts) * (self.dimensions or MOST_DIMENSIONS)
        most = _BYTES_BESIDE + numbers * _BYTES_A_NUMBER
        try:
            reply = self._endpoint.post(msgspec.json.encode(body), seconds=seconds, most_bytes=most)
        except NoAnswer as error:
            raise _Late(str(error)) from error
        except EndpointUnavailable as error:
            raise EmbedderUnavailable(str(error), retry_after=error.retry_after) from error
        if reply.status != 200:
            words = words_of(reply.body, self._settings.embedding_key) if ours else ""
            raise self._fault(reply, words)
        try:
            vectors = vectors_of(reply.body, count=len(texts), dimensions=self.dimensions)
        except WrongLength as wrong:
            if self._settings.embedding_dimensions:
                mend = "; unset KB_EMBEDDING_DIMENSIONS where it knows one length only"
            else:
                mend = ", which the base is filled with: name its model, or run `kb reindex`"
            raise self._out_of_order(f"answers with {wrong}{mend}") from wrong
        except BadAnswer as bad:
            raise _Refused(f"answers with {bad}") from bad
        self.dimensions = vectors.shape[1]
        return vectors

    def _fault(self, reply: Reply, words: str) -> EmbedderUnavailable | _Refused:
        """Return the error for a status other than 200, with advice."""
        its_fault = reply.status >= 500 and any(each in reply.body.lower() for each in _ITS_FAULT)
        if reply.status in {400, 413, 422} or its_fault:
            return _Refused(f"answers HTTP {reply.status}", words)
        if reply.status in {401, 403}:
            mend = "set OPENAI_API_KEY to a key that it takes"
        elif reply.status in {404, 405}:
            mend = "check KB_EMBEDDING_URL, which mostly ends in /v1, and KB_EMBEDDING_MODEL"
        elif 300 <= reply.status < 400:
            mend = "it redirects; set KB_EMBEDDING_URL to where that leads"
        else:
            mend = "it is asked again"
        # A 5xx may be caused by a single text, so there is no backoff for other texts.
        rest = 0.0 if reply.status >= 500 else _REST_SECONDS
        if reply.retry_after is not None:
            rest = reply.retry_after
        return self._out_of_order(f"answers HTTP {reply.status}: {mend}", words, rest)

    def _out_of_order(self, what: str, words: str = "", rest: float = _REST_SECONDS) -> EmbedderUnavailable:
        reason = f" ({words})" if words else ""
        return EmbedderUnavailable(f"{self._settings.embeddings_url} {what}{reason}", retry_after=rest)


class _Late(EmbedderUnavailable):
    """Time-out: the endpoint hangs, or the batch is more than it can process in time."""


@dataclass(eq=False)
class _Refused(Exception):
    """The endpoint refuses these texts, and may accept other texts, or parts of these."""

    what: str
    words: str = ""  # the endpoint's message; empty if it may quote a document


def _batches(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    """Yield batches of at most `most` texts and 100,000 characters; a longer text is alone in its batch."""
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == most or chars + len(text) > _BATCH_CHARS):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


def cut(text: str, most: int) -> str:
    """Truncate a text to at most `most` estimated tokens."""
    while (tokens := estimated_tokens(text)) > most and len(text) > 1:
        text = text[: max(1, min(len(text) - 1, len(text) * most // tokens))]
    return text


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text for an unknown tokenizer, including two special tokens.

        letters of a to z                       1 token for 3 letters, each word by itself
        digits, signs, other letters of 2 bytes 1 token each (accents, Greek, Cyrillic, Hebrew, Arabic)
        characters of 3 bytes                   2 tokens each (Chinese, Japanese, Indic scripts)
        Korean syllables                        3 tokens each
        characters of 4 bytes                   4 tokens each (emoji, rare Chinese characters)

    The estimate is rather too high. WordPiece splits Korean into two or three letters, and byte-level
    tokenizers use single bytes for scripts outside their training data. English prose has four to five
    letters per token, so it is counted a third too high. Random letters, as in a key, and prose in a language
    outside the training data can have a few more tokens than estimated.
    """
    words = sum(-(-len(word) // _LETTERS_A_TOKEN) for word in _WORD.findall(text))
    return _MARKS + words + sum(weight * len(kind.findall(text)) for weight, kind in _WEIGHTS)
