"""An embedder behind an OpenAI-compatible endpoint: Ollama, vLLM, TEI, llama.cpp, OpenAI and the like.

    load    a few texts of our own ──▶ the dimensions, and how near its vectors lie to one another
    embed   texts, each cut to the model's window ──▶ batches ──▶ vectors of length 1
            a refused batch ──▶ one text at a time ──▶ half of it, a quarter ... ──▶ TextRefused

Nothing waits here: an endpoint that is out of order is told at once, and whoever has time tries again.
What an endpoint says went wrong is passed on only where it was asked about texts of our own.
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
from kb_engine.embed.openai.settings import MOST_DIMENSIONS, OpenAISettings
from kb_engine.embed.own_model import as_setting, scoring_for
from kb_engine.embed.protocol import Embedder, EmbedderUnavailable, TextRefused
from kb_engine.endpoint.client import EndpointThread, EndpointUnavailable, NoAnswer, Reply, words_of
from kb_engine.index.port import Vectors

logger = logging.getLogger(__name__)

_QUERY_SECONDS = 15.0  # somebody waits for the answer; a batch may take as long as the setting says
_REST_SECONDS = 5.0  # before an endpoint that is out of order is asked again
_BATCH_CHARS = 100_000
_BYTES_A_NUMBER = 48  # sign, 17 digits, exponent, comma, and the indent of an endpoint that likes to show
_BYTES_BESIDE = 256 * 1024
_LESS_AT_ONCE = 4  # a batch that took too long is tried again in so many parts
_SHORTEST = 64  # a text that is refused at fewer characters is not refused for its length
_PROBE = "kb"
_BLANK = "."  # an empty text is refused by most endpoints, and asks for nothing in particular
# What endpoints say with a status of 500 of a text that is longer than they can take, and of one that their
# model makes numbers of that are none.
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

    The constants of the score are those of the settings; the others are measured at loading, MiniLM's until
    then.
    """

    device = "remote"
    queries_at_once = 16

    def __init__(self, settings: OpenAISettings) -> None:
        """Raises SettingsError where the settings name no endpoint."""
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
        """Ask for the vectors of a few texts; does nothing once that has succeeded."""
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
        """One vector a passage; of one beyond the window only its beginning counts."""
        self.load()
        prefix = self._settings.embedding_document_prefix
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        return self._in_batches([self._within_window(prefix, text) for text in texts])

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a question, with the prefix of questions; within 15 seconds, or not at all."""
        self.load()
        query = self._within_window(self._settings.embedding_query_prefix, text)
        try:
            vector: NDArray[np.float32] = self._vectors([query], self._query_seconds)[0]
        except _Late as error:
            # The next ones would line up behind one another, each for as long.
            raise EmbedderUnavailable(str(error), retry_after=_REST_SECONDS) from error
        return vector

    def close(self) -> None:
        self._endpoint.close()

    def _within_window(self, prefix: str, text: str) -> str:
        room = self.max_tokens - estimated_tokens(prefix)
        return prefix + (cut(text, max(room, 1)) if text.strip() else _BLANK)

    def _in_batches(self, texts: Sequence[str]) -> Vectors:
        """The vectors of texts; how many go into a batch of the next call follows what is done in time.

        Fewer after a batch that took too long, then by and by more again: a slow endpoint does its work in
        small portions, and one that hung for a moment is soon given large ones.
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
        """The vectors of texts; those of a refused batch are asked for one by one, cut until they pass."""
        try:
            return self._ask(texts, seconds)
        except _Refused as refused:
            self._prove_in_order(self._query_seconds)
            if len(texts) > 1:
                self._ask_for_less(len(texts))  # that many may be too many
                return np.concatenate([self._vectors([text], seconds) for text in texts])
            return self._vector_of_beginning(texts[0], refused, seconds)

    def _vector_of_beginning(self, text: str, refused: _Refused, seconds: float) -> Vectors:
        """Some endpoints cut what is longer than the model's window, others refuse it: these are helped.

        So are models that make nothing of a text as a whole, which happens, and something of a part.
        """
        length = len(text)  # beginning with the whole: the fault may have passed
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
                "a passage is embedded by its beginning; was it too long, lower KB_EMBEDDING_MAX_TOKENS",
                extra={"why": refused.what, "characters": len(text), "embedded": length},
            )
        return vector

    def _prove_in_order(self, seconds: float) -> None:
        """Raises EmbedderUnavailable where the endpoint refuses even a plain short text."""
        try:
            self._ask([_PROBE], seconds, ours=True)
        except _Refused as refused:
            raise self._out_of_order(refused.what, refused.words) from None

    def _ask(self, texts: list[str], seconds: float, *, ours: bool = False) -> Vectors:
        """One request. Raises EmbedderUnavailable, or _Refused where another request may fare better.

        The endpoint's own words are told only of texts that are `ours`: it may quote what it was asked.
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
        """What a status other than 200 means, and what to do about it."""
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
        # A 5xx may be the fault of one text: it keeps nobody from asking for others.
        rest = 0.0 if reply.status >= 500 else _REST_SECONDS
        if reply.retry_after is not None:
            rest = reply.retry_after
        return self._out_of_order(f"answers HTTP {reply.status}: {mend}", words, rest)

    def _out_of_order(self, what: str, words: str = "", rest: float = _REST_SECONDS) -> EmbedderUnavailable:
        reason = f" ({words})" if words else ""
        return EmbedderUnavailable(f"{self._settings.embeddings_url} {what}{reason}", retry_after=rest)


class _Late(EmbedderUnavailable):
    """Not in time: the endpoint hangs, or these texts are more than it can do meanwhile."""


@dataclass(eq=False)
class _Refused(Exception):
    """The endpoint does not take these texts, and may take others, or parts of them."""

    what: str
    words: str = ""
    """Its own; empty where it may quote a document."""


def _batches(texts: Sequence[str], most: int) -> Iterator[list[str]]:
    """The texts in order, at most so many and 100,000 characters at once; a longer text goes alone."""
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
    """The beginning of the text, as far as it is estimated at `most` tokens."""
    while (tokens := estimated_tokens(text)) > most and len(text) > 1:
        text = text[: max(1, min(len(text) - 1, len(text) * most // tokens))]
    return text


def estimated_tokens(text: str) -> int:
    """The tokens of a text where the tokenizer is not known, with the two marks that most put around it.

        letters of a to z                       3 a token, each word by itself
        digits, signs, other letters of 2 bytes 1 token each (accents, Greek, Cyrillic, Hebrew, Arabic)
        what takes 3 bytes                      2 tokens each (Chinese, Japanese, Indic scripts)
        Korean syllables                        3 tokens each
        what takes 4 bytes                      4 tokens each (emoji, rare Chinese characters)

    An estimate that is rather too high. WordPiece takes Korean apart into two or three letters, and what
    works on bytes knows nothing longer than a byte of what it has not been trained on. English prose has four
    to five letters a token, so it is counted a third more than it has. Random letters, as in a key, and prose
    in a language that the model has not been trained on can have a few more tokens than this.
    """
    words = sum(-(-len(word) // _LETTERS_A_TOKEN) for word in _WORD.findall(text))
    return _MARKS + words + sum(weight * len(kind.findall(text)) for weight, kind in _WEIGHTS)
