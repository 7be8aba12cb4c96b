"""Word analysis: the terms of a chunk and of a query, and their weights; the same in every index.

The tokens come from SQLite's FTS5 tokenizer, called through APSW without a table. A term is a token, or two
adjacent CJK tokens joined by a space: the units that a query can contain. In a document in a known language
other than English, tokens are stemmed by the rules of that language (`languages.py`); in a language without
spaces each letter is a token, like a CJK character.

The stem of a language other than English carries its language (`de|haus`): it is found in documents of that
language only, so that no document changes the answers from documents in another language.

A word of a query is looked up in each form that it has in the languages of the base. So it is found in every
document, inflected or not, and the forms together weigh as one word that occurs in any of their chunks. A
repeated word weighs more, with saturation: `(QUERY_SATURATION + 1) * n / (n + QUERY_SATURATION)` times its
weight. English function words are left out while other words remain, and so are those of another language of
the base if the query has at least two, and more than of English.

    weight(word) = log((size + BACKGROUND + 1) / (count + 1/2))

for a word in `count` of `size` chunks. That is BM25's logarithm for a base with `BACKGROUND` additional
chunks without the word: three notes do not show which words are rare, and without these chunks a word in all
of them would weigh nothing. In a large base they make no difference. A word in no chunk weighs twice as much:
it is in no BM25 but in the total, and few questions with such a word are answered.

A small base does not show either which words are function words, and even a large one does not for
interrogatives, which are frequent in questions and rare in passages. So an English function word weighs at
most as much as a word in seven of ten chunks, however rare it is.

Text is normalized before the comparison: ligatures, full-width forms and similar variants become the plain
letter, ß becomes ss, and invisible characters (soft hyphen, joiner), the points of Hebrew and Arabic and the
nukta are removed. Terms have no accents, after stemming: `Łódź` is found by `Lodz`.

An identifier (`KB_EMBEDDER`, `node.js`, `C++`, `/etc/passwd`, `192.168.0.1`) yields its words and one more
term, the whole identifier, so that a passage with exactly this identifier ranks above passages with its
parts. It increases a score where it is found, and decreases no score where it is missing: it is not part of
the total weight. An index that was built without such terms lacks only their weight, and can be extended by
them. Further terms make identifiers findable in other spellings: the parts of `parseJSONResponse`, the first
seven characters of a hexadecimal digest, and `E1234` for `E-1234`.

A title is a field of its own. Its terms count among those of each passage, and once more with a mark, which
no other term begins with (`^haus`). A query looks for both. The marked term has `TITLE_SHARE` of the word's
weight, outside the total, and a greater frequency the shorter the title: so a page named for the subject
ranks above a large page that mentions it.

The total weight of a query is the BM25 of a passage of average length that contains each word
once: the sum of all weights, including words that occur in no chunk, with the effect of repetitions. BM25
divided by it is the share of the query that a passage covers. It means the same for a query of two words and
of thirty, in a base of one chunk and of a million.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice, pairwise
from typing import NamedTuple, TypeAlias, cast
from unicodedata import normalize

import apsw

from kb_engine.index.languages import FUNCTION_WORDS, STEMMERS, UNSPACED, stemmer

TOKENIZER = "porter unicode61 remove_diacritics 2"
MAX_IDENTIFIERS = 64
MAX_PHRASES = 256
"""Maximum number of phrases of a query of up to 4,000 characters; further ones are ignored."""
MAX_REQUIRED = 16
"""Maximum number of words that a chunk must contain: more of them hardly reduce the number of chunks."""

_CJK = (
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Han, kana, bopomofo and Hangul: written without spaces, or with particles attached to words."""
CJK_CHARACTER = re.compile(f"[{_CJK}]")
_CJK_RUN = re.compile(f"[{_CJK}]+")
_UNSPACED = "".join(UNSPACED.values())
_UNSPACED_CHARACTER = re.compile(f"[{_CJK}{_UNSPACED}]")
_UNSPACED_RUN = re.compile(f"[{_CJK}{_UNSPACED}]+")
_WITH_MARKS = ("unicode61", ["remove_diacritics", "0", "categories", "L* N* Co Mn Mc"])
"""Tokenizer for stemmed languages: their rules need accents, and Hindi words must not be split at vowel
signs.
"""

_TURKISH, _PERSIAN = "tr", "fa"
_JOINER = "\u200c"
"""Zero-width non-joiner, which Persian has between parts of a word; a blank is often written instead."""

TITLE_WEIGHT = 2
"""Weight of a word in the title; in heading and text it is 1."""
TITLE_MARK = "^"
TITLE_SHARE = 0.5
"""Weight of a marked term, relative to the word."""
MARKED_TITLE = 12
"""Frequency of the marked terms of a title of one token, and number of tokens up to which a title has any."""
LONGEST_TERM = 200
"""Maximum length of a term in characters. A longer one is replaced by its digest, as index rows are short."""
BACKGROUND = 100
QUERY_SATURATION = 8.0
"""Number of occurrences of a word in the query at which their effect is about half of the maximum."""
FUNCTION_WORD_SHARE = 0.7
LEAST_FUNCTION_WORDS = 2
"""Number of function words that show the language of a query. A single one may be English, too: die, war."""
UNSEEN = 2.0
"""Factor of the weight of a word in no chunk."""

_FUNCTION_WORDS = """
a about after all also am an and any are as at be because been before being between both but by could did do
does doing during each either ever every few for from further had has have having he her here him his how
however i if in into is it its itself me more most my nor not of off on once only or other our out over per
quite rather shall she should since so some such than that the their them then there these they this those
through thus to too under until up upon very was we were what when where whether which while who whom whose
why with within without would yet you your
"""
# Omitted: can, may, will, must, us, no and similar words, which are also names or nouns.

_BEFORE_IDENTIFIERS = f"FTS5 {TOKENIZER}, CJK pairs, title {TITLE_WEIGHT}"
_BEFORE_LANGUAGES = f"{_BEFORE_IDENTIFIERS}, identifiers, languages"
_BEFORE_TITLES = f"{_BEFORE_LANGUAGES} apart, parts of identifiers, no accents"
ANALYSER = f"{_BEFORE_TITLES}, marked titles"
"""Identifies the analyser in every index file."""
EARLIER_ANALYSERS: Sequence[str] = (_BEFORE_IDENTIFIERS, _BEFORE_LANGUAGES, _BEFORE_TITLES)
"""Earlier analysers, the oldest first, whose terms are still found by queries of this one, apart from terms
that they lack: their files remain in use until they are rebuilt. Files of further analysers are unusable.
"""
WITHOUT_LANGUAGES = frozenset({_BEFORE_IDENTIFIERS, _BEFORE_LANGUAGES})
"""The analysers whose terms have another form (`earlier_form`)."""


_PART = r"[^\W_]+"
_JOINT = r"[._:/@+#-]{1,3}"
_IDENTIFIER = re.compile(
    rf"(?<![^\W_])(?:[._#@/~-]{{1,3}}{_PART}|{_PART}(?=[._:/@+#-]))(?:{_JOINT}{_PART})*(?:\+\+|#)?(?![^\W_])"
)
"""Parts and joining characters without white space; also a single part with a mark before or after it."""
_BEFORE, _BEHIND = "([{<\"'`*", ".:,;!?)]}>\"'`*"
_MARKS = re.compile("[._:/@+#~-]")
_PROSE = re.compile(r"[^\W\d_]+(?:[-/][^\W\d_]+)+|[^\W\d_](?:\.[^\W\d_])+")
"""Matches prose such as well-known, and/or, e.g., which has several spellings."""
_IDENTIFIER_WEIGHT = 2.0
"""Weight relative to a word in as many chunks: passages that repeat the parts rank below the one with the
whole.
"""
_KINDS = bytes(
    ord("a" if code >= 128 or chr(code).islower() else "A" if chr(code).isupper() else "0")
    if code >= 128 or chr(code).isalnum()
    else ord("." if _MARKS.match(chr(code)) else " ")
    for code in range(256)
)
"""A translation of UTF-8: one byte each for small letters, capitals, digits, joining marks, and all else."""
_HUMPED = re.compile(r"\b(?:[a-z]+[A-Z]|[A-Z]+[a-z]+[A-Z]|[A-Z]{2,}[a-z])[A-Za-z0-9]*")
_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z]{2})|[A-Z]?[a-z]+|[A-Z]+|\d+")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_NUMBERED = re.compile(r"[a-z]{1,5}-\d{2,}")
_DIGEST = re.compile(r"(?=\d{0,64}[a-f])(?=[a-f]{0,64}\d)[0-9a-f]{7,128}")
_DIGEST_WORD = re.compile(rf"(?<!\w){_DIGEST.pattern}(?!\w)")
_WHOLE_DIGEST = 12
"""Minimum length of a digest of which the beginning is a term."""
_DIGEST_START = 7
"""Number of characters by which a hexadecimal digest is found, as Git abbreviates it."""
_POINTS = "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u093c"
"""The points of Hebrew and Arabic, the tatweel and the nukta."""
_UNSEEN = re.compile(f"[\u00ad\u200b-\u200d\u2060\ufeff{_POINTS}]")
_WITHOUT_ACCENTS = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "æ": "ae", "œ": "oe", "þ": "th"}
)
"""Letters that Unicode does not decompose."""
_PLAIN = {ord("ß"): "ss", ord("ẞ"): "SS", **dict.fromkeys(range(0x2010, 0x2016), "-"), 0x2212: "-"}


def plain(text: str) -> str:
    """Normalize a text, without lone surrogates, which have no UTF-8 encoding."""
    if text.isascii():
        return text
    return _UNSEEN.sub("", normalize("NFKC", text.encode("utf-8", "replace").decode()).translate(_PLAIN))


def identifiers(text: str) -> list[str]:
    """Return the identifiers in a normalized text, in lower case, with repetitions."""
    kinds = _kinds(text)
    is_joined = b".a" in kinds or b".A" in kinds or b".0" in kinds
    if not is_joined and "#" not in text and "++" not in text:
        return []
    # Most words are letters and a full stop: matching each against the expression would take four times as
    # long.
    candidates = [
        bare
        for word in text.split()
        if not word.isalnum() and not (bare := word.rstrip(_BEHIND).lstrip(_BEFORE)).isalnum()
    ]
    found = _IDENTIFIER.findall(" ".join(candidates)) if candidates else []
    return [_bounded(one.lower()) for one in found if _MARKS.search(one) and not _PROSE.fullmatch(one)]


def _spellings(text: str, whole: Iterable[str]) -> list[str]:
    """Return further spellings of a normalized text's identifiers; `whole` are those with marks."""
    kinds = _kinds(text)
    is_humped, has_digits = b"aA" in kinds or b"AA" in kinds, b"0" in kinds
    words = text.split() if is_humped or has_digits else []
    found = []
    if is_humped:
        capitals = [word for word in words if not word.islower()]
        humped = _HUMPED.findall(" ".join([word for word in capitals if not word[1:].islower()]))
        found = [part for word in humped for part in _PARTS.findall(word) if len(part) > 1]
    if has_digits:
        long = " ".join([word.lower() for word in words if len(word) >= _WHOLE_DIGEST])
        digests = (word for word in _DIGEST_WORD.findall(long) if len(word) >= _WHOLE_DIGEST)
        found += [digest[:_DIGEST_START] for digest in digests]
    found += [one.replace("-", "") for one in whole if _NUMBERED.fullmatch(one)]
    return found


def _kinds(text: str) -> bytes:
    """Return the kinds of a text's characters: this is much faster than a look at each word."""
    return text.encode("utf-8", "surrogatepass").translate(_KINDS)


def is_identifier(term: str) -> bool:
    """True if a term is an identifier; tokens contain no joining characters."""
    return _MARKS.search(term) is not None


def index_text(text: str, alone: re.Pattern[str] = CJK_CHARACTER) -> str:
    """Prepare text for FTS5: each CJK character (or each match of `alone`) becomes a word of its own.

    The unicode61 tokenizer treats a run of CJK characters as one word, so that words within a sentence would
    never be found. The result is indexed only, never shown.
    """
    return alone.sub(r" \g<0> ", plain(text)).replace("\0", " ")


class AnalysedChunk(NamedTuple):
    """The terms of a chunk with its title and heading."""

    terms: list[str]
    """The terms, repeated by their weight, in any order."""
    length: int
    """Number of tokens: pairs are not counted, and title tokens count once."""


Word: TypeAlias = tuple[str, ...]
"""A word of a query: its terms in documents of different languages, the English one first."""


class Analyser:
    """Turns texts into terms. Use it in one thread; a given connection is used for its tokenizers only."""

    def __init__(self, db: apsw.Connection | None = None) -> None:
        self._db = db or apsw.Connection(":memory:")
        self._tokenizer = self._db.fts5_tokenizer("porter", TOKENIZER.split()[1:])
        self._with_marks = self._db.fts5_tokenizer(*_WITH_MARKS)

    def words_of(self, query: str, languages: Iterable[str] = ()) -> list[Word]:
        """Return the words of a query for documents in these languages, in English, and in unknown languages,
        with repetitions; identifiers come last. Function words are left out while other words remain.
        """
        whole = [(one,) for one in dict.fromkeys(identifiers(plain(query)))]
        languages = list(languages)
        stemmed = _stemmed(languages)
        joined: dict[str, Word] = {}
        for (one,) in whole:
            if _NUMBERED.fullmatch(one):
                number = one.partition("-")[2]
                joined[number] = joined.get(number, ()) + self._forms(one.replace("-", ""), stemmed)
        # In capitals they are names or operators: IT, WHO, AND.
        written = [] if query.isupper() else _CAPITALS.findall(query)
        dropped = (_function_words() | self._foreign_function_words(query, languages)).difference(
            map(str.lower, written)
        )
        found = self._tokens_and_words(query, languages, dropped)
        return [*((*word, *joined.get(token, ())) for token, word in found), *whole[:MAX_IDENTIFIERS]]

    def tokens(self, query: str) -> list[str]:
        """Return the words of a query in lower case, with their accents."""
        return self._tokens(plain(query), apsw.FTS5_TOKENIZE_QUERY, self._with_marks)

    def _foreign_function_words(self, query: str, languages: Sequence[str]) -> frozenset[str]:
        """Return the function words of a query in the languages that have most of them, if that is not
        English. Beside documents in English, words of both languages show neither: war in Europe.
        """
        if not languages:
            return frozenset()
        tokens = frozenset(self.tokens(query))
        english = tokens & _function_words()
        shared = english if "en" in languages else frozenset()
        found = [
            words
            for words in (tokens & _function_words_in(each) for each in languages if each in FUNCTION_WORDS)
            if len(words - shared) >= LEAST_FUNCTION_WORDS
        ]
        most = max(map(len, found), default=0)
        return frozenset().union(*(words for words in found if len(words) == most > len(english)))

    def _tokens_and_words(
        self, query: str, languages: Sequence[str], dropped: Container[str] = ()
    ) -> list[tuple[str, Word]]:
        """Return the words of a query, each with its token in lower case; "" for pairs of letters. Tokens in
        `dropped` are left out while other words remain.
        """
        stemmed = _stemmed(languages)
        unspaced = any(language in UNSPACED for language in languages)
        if _PERSIAN in languages:
            query = query.replace(_JOINER, " ")
        query = plain(query).replace("\0", " ")
        runs = _UNSPACED_RUN if unspaced else _CJK_RUN
        spaced = self._tokens(runs.sub(" ", query), apsw.FTS5_TOKENIZE_QUERY, self._with_marks)
        unbroken = runs.findall(query)
        content = [token for token in spaced if token not in dropped]
        if not content and not unbroken:
            content = spaced
        forms = {token: self._forms(token, stemmed) for token in dict.fromkeys(content)}
        if _PERSIAN in languages:
            for pair in pairwise(spaced):
                if not any(map(str.isascii, pair)):
                    joined = self._forms("".join(pair), [_PERSIAN])
                    forms |= {token: forms[token] + joined for token in pair if token in forms}
        words = [(token, forms[token]) for token in content]
        for run in unbroken:
            words += (("", pair) for pair in self._pairs(run))
        known = set(islice(dict.fromkeys(word for _, word in words if word), MAX_PHRASES))
        return [(token, word) for token, word in words if word in known]

    def required(self, texts: Iterable[str], languages: Sequence[str]) -> list[Word]:
        """Return the distinct words of all these texts, at most `MAX_REQUIRED`; the longest, as these are
        usually the rarest.

        A passage that contains the texts literally contains one form of each word. Identifiers are not
        required as a whole: with different characters between its words it is still the same phrase.
        """
        found = dict.fromkeys(word for text in texts for _, word in self._tokens_and_words(text, languages))
        return sorted(found, key=lambda word: -len(word[0]))[:MAX_REQUIRED]

    def _forms(self, token: str, languages: Sequence[str]) -> Word:
        plain = self._tokens(token, apsw.FTS5_TOKENIZE_QUERY)
        stems = [_stem(language, [token])[0] for language in languages]
        if _TURKISH in languages:
            # The tokenizer lower-cases a capital I to i, but in Turkish it is ı: Işık, IŞIK, ışık.
            first = {"ı": "i", "i": "ı"}.get(token[0], token[0])
            stems += _stem(_TURKISH, [first + token[1:], token.replace("ı", "i")])
        is_digest = len(token) > _DIGEST_START and _DIGEST.fullmatch(token)
        start = self._forms(token[:_DIGEST_START], languages) if is_digest else ()
        forms = [*plain, *stems]
        if not "".join(forms).isascii():  # indexes of earlier analysers have accents in their terms
            forms = [*map(_without_accents, forms), *forms]
        return tuple(dict.fromkeys(map(_bounded, [*forms, *start]))) if plain else ()

    def _pairs(self, run: str) -> list[Word]:
        """Return the pairs of adjacent letters in a run. The first pair also has the form of the run in
        documents of unknown language.
        """
        letters = self._tokens(_UNSPACED_CHARACTER.sub(r" \g<0> ", run), apsw.FTS5_TOKENIZE_QUERY)
        pairs = [" ".join(pair) for pair in pairwise(letters)] or letters
        whole = [] if _CJK_RUN.fullmatch(run) else self._tokens(run, apsw.FTS5_TOKENIZE_QUERY)
        return [tuple(dict.fromkeys([pairs[0], *whole])), *((pair,) for pair in pairs[1:])] if pairs else []

    def chunks(
        self, title: str, chunks: Iterable[tuple[str | None, str]], language: str | None = None
    ) -> Iterator[AnalysedChunk]:
        """Yield the terms of a document's chunks, given as heading and text."""
        titled = self._analysed(title, language)
        marked = _marked(dict.fromkeys(titled.terms)) * (MARKED_TITLE // max(titled.length, 1))
        titled_terms = titled.terms * TITLE_WEIGHT + marked
        for heading, text in chunks:
            parts = [self._analysed(heading or "", language), self._analysed(text, language)]
            terms = list(chain(titled_terms, *(part.terms for part in parts)))
            yield AnalysedChunk(terms, titled.length + sum(part.length for part in parts))

    def _analysed(self, text: str, language: str | None) -> AnalysedChunk:
        if not text:  # most chunks have no heading
            return AnalysedChunk([], 0)
        text = plain(text)
        character = _UNSPACED_CHARACTER if language in UNSPACED else CJK_CHARACTER
        raw = text if text.isascii() else index_text(text, character)
        if language in STEMMERS:
            found = self._tokens(raw, apsw.FTS5_TOKENIZE_DOCUMENT, self._with_marks)
            tokens = _stem(language, found)
        else:
            tokens = self._tokens(raw, apsw.FTS5_TOKENIZE_DOCUMENT)
        terms = tokens
        if not text.isascii():
            terms = tokens = [_without_accents(token) for token in tokens]
            alone = [character.match(token) is not None for token in tokens]
            pairs = pairwise(zip(tokens, alone, strict=True))
            terms = tokens + [f"{first} {second}" for (first, a), (second, b) in pairs if a and b]
        if max(map(len, terms), default=0) > LONGEST_TERM:
            terms = [_bounded(term) for term in terms]
        if whole := identifiers(text):
            terms = [*terms, *whole]
        if spellings := _spellings(text, whole):
            terms = [*terms, *self._tokens(" ".join(spellings), apsw.FTS5_TOKENIZE_DOCUMENT)]
        return AnalysedChunk(terms, len(tokens))

    def _tokens(self, text: str, reason: int, tokenizer: apsw.FTS5Tokenizer | None = None) -> list[str]:
        raw = text.encode("utf-8", "replace")
        found = (tokenizer or self._tokenizer)(
            raw, reason, None, include_offsets=False, include_colocated=False
        )
        return cast("list[str]", found)


def _without_accents(term: str) -> str:
    if term.isascii():
        return term
    decomposed = normalize("NFD", term.translate(_WITHOUT_ACCENTS))
    return normalize("NFC", "".join(each for each in decomposed if not "\u0300" <= each <= "\u036f"))


def _stemmed(languages: Iterable[str]) -> list[str]:
    return [language for language in languages if language in STEMMERS]


def _stem(language: str, tokens: list[str]) -> list[str]:
    """Return the terms of tokens in documents of a language of `STEMMERS`; a letter of a script without
    spaces is the same in each.
    """
    return [
        token if not token.isascii() and _UNSPACED_CHARACTER.match(token) else f"{language}|{stem}"
        for token, stem in zip(tokens, stemmer(language)(tokens), strict=True)
    ]


def earlier_form(term: str) -> str:
    """Return the form that the analysers of `WITHOUT_LANGUAGES` gave a term; "" for a marked one."""
    return "" if term.startswith(TITLE_MARK) else term.rpartition("|")[2]


def _bounded(term: str) -> str:
    """Return a term of at most `LONGEST_TERM` characters. The digest of a longer one begins with a space,
    which no token does, so it collides with no term.
    """
    if len(term) <= LONGEST_TERM:
        return term
    return " " + hashlib.sha256(term.encode("utf-8", "surrogatepass")).hexdigest()


def looked_up(words: Iterable[Word]) -> list[str]:
    """Return the distinct terms of a query's words, then those of titles."""
    terms = list(dict.fromkeys(chain.from_iterable(words)))
    return [*terms, *_marked(terms)]


def _marked(terms: Iterable[str]) -> list[str]:
    return [f"{TITLE_MARK}{term}" for term in terms if not is_identifier(term)]


class Weights(NamedTuple):
    """The weights of a query's terms, in order, and their sum, which is 0 without terms."""

    of_terms: Sequence[float]
    total_weight: float


def weigh(terms: Sequence[str], counts: Sequence[int], size: int, occurrences: Sequence[int] = ()) -> Weights:
    """Weigh the terms of a query; `counts` are the numbers of chunks with each term, out of `size`.
    `occurrences` are the numbers of times that each term occurs in the query (by default once); they count in
    the total.

    A query of function words alone must not count as fully covered by any passage: its total is at least the
    weight of one word that occurs in no chunk.
    """
    most = -math.log(FUNCTION_WORD_SHARE)
    of_terms = []
    for term, count in zip(terms, counts, strict=True):
        weight = (1.0 if count else UNSEEN) * math.log((size + BACKGROUND + 1) / (min(count, size) + 0.5))
        of_terms.append(min(weight, most) if term in _function_terms() else weight)
    often = map(repeated, occurrences or [1] * len(terms))
    total_weight = sum(weight * factor for weight, factor in zip(of_terms, often, strict=True))
    if terms and _function_terms().issuperset(terms):
        total_weight = max(total_weight, math.log((size + BACKGROUND + 1) / 0.5))
    return Weights(of_terms, total_weight)


def weigh_words(
    words: Sequence[Word], counts: Mapping[str, int], size: int
) -> tuple[dict[str, float], float]:
    """Return the weight of each term that is looked up, and the query's total weight. Missing counts are 0.

    All forms of a word share the weight of a word in as many chunks as contain any form. A term of two words
    has the sum of their weights. Identifiers and marked terms have weights too, outside the total.
    """
    whole = [word for word in words if is_identifier(word[0])]
    forms: dict[str, dict[str, int]] = {}
    for word in words:
        if word not in whole:
            of_word = forms.setdefault(word[0], {})
            for term in word:
                of_word[term] = of_word.get(term, 0) + 1
    together = [sum(counts.get(term, 0) for term in terms) for terms in forms.values()]
    occurrences = [terms[first] for first, terms in forms.items()]
    weights = weigh(list(forms), together, size, occurrences)
    of_terms: dict[str, float] = {}
    for (one,) in whole:
        of_terms[one] = _IDENTIFIER_WEIGHT * weigh([one], [counts.get(one, 0)], size).total_weight
    for terms, weight in zip(forms.values(), weights.of_terms, strict=True):
        for term, count in terms.items():
            of_terms[term] = of_terms.get(term, 0.0) + weight * repeated(count)
    for term in [term for term in of_terms if not is_identifier(term)]:
        of_terms[f"{TITLE_MARK}{term}"] = TITLE_SHARE * of_terms[term]
    return of_terms, weights.total_weight


def repeated(occurrences: int) -> float:
    """Return the factor of the weight of a word that occurs so many times in the query; 1 for one time."""
    return (QUERY_SATURATION + 1) * occurrences / (occurrences + QUERY_SATURATION)


@cache
def _function_words() -> frozenset[str]:
    return frozenset(_FUNCTION_WORDS.split())


@cache
def _function_words_in(language: str) -> frozenset[str]:
    """Return the tokens of a language's function words."""
    return frozenset(Analyser().tokens(FUNCTION_WORDS[language]))


@cache
def _function_terms() -> frozenset[str]:
    return frozenset(word[0] for word in Analyser().words_of(_FUNCTION_WORDS))
