"""The wire models of the engine API, version 3.

Times are RFC 3339 in UTC with a `Z`. Offsets and lengths of text count Unicode code points. Sizes of files
and storage are bytes. Requests refuse unknown fields; responses may gain fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kb_contracts.api.formats import FORMATS
from kb_contracts.api.formats import DocType as DocType

Mode = Literal["hybrid", "fts", "vector"]
JobKind = Literal["note", "file", "update"]
JobStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
FINAL_STATUSES: frozenset[JobStatus] = frozenset({"completed", "failed", "cancelled"})
"""The statuses that a job does not leave."""
DocumentStatus = Literal["searchable", "empty"]
SourceOutcome = Literal["created", "unchanged", "replaced"]
"""Effect of a job on its source: the source is new, already had this content, or had different content."""
LeftOut = Literal["title", "tags", "metadata"]
SortBy = Literal["id", "title", "filename", "created_at", "updated_at", "size_bytes"]
SortOrder = Literal["asc", "desc"]
DateField = Literal["created_at", "updated_at"]
Detail = Literal["full", "locations"]
"""Content of each search result: complete, or only its title and location without any text."""
QueryKind = Literal["exact", "keywords", "question"]
"""Kind of a query by its form: the exact name of a thing, a few keywords, or a question."""
CitationStatus = Literal["there", "moved", "changed", "gone"]
Signal = Literal["useful", "not_useful", "clicked"]
"""Feedback on a document: two ratings, of which the last one counts, and the signal that it was opened."""

MAX_INTEGER = 9_223_372_036_854_775_807
MAX_NOTE_CHARS = 1_000_000
MAX_QUERY_CHARS = 4_000
MAX_TITLE_CHARS = 500
MAX_TAGS = 64
MAX_NEIGHBORS = 5
MAX_QUOTE_CHARS = 20_000
MAX_CURSOR_CHARS = 262_144
MAX_CITATION_CHARS = 1_000
"""Maximum length of a citation written as one line, in characters."""

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
"""Pattern of a UUID in small letters."""
NOT_BLANK = r"[^\s\x1c-\x1f\x85\ufeff]"
"""Pattern of a text with at least one visible character. It covers the white space of every regex dialect."""

_TAG = r"(?!\.{1,2}(,|$))[^\x00-\x20\x7f,/]([^\x00-\x1f\x7f,/]*[^\x00-\x20\x7f,/])?"
Tag = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=rf"^{_TAG}$(?!\n)",
        description="a tag: no control characters, commas or slashes, no space at either end; `.` and `..` "
        "are invalid",
        examples=["collection:documents"],
    ),
]
Tags = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2_000,
        pattern=rf"^{_TAG}(,{_TAG})*$(?!\n)",
        description="comma-separated tags, all of them required",
        examples=["collection:documents,insurance"],
    ),
]
DocumentId = Annotated[int, Meta(ge=1, le=MAX_INTEGER, description="the document's number")]
Version = Annotated[
    int, Meta(ge=1, le=MAX_INTEGER, description="the document's version, increased by every change")
]
Query = Annotated[
    str,
    Meta(
        min_length=1, max_length=MAX_QUERY_CHARS, pattern=NOT_BLANK, description="the search text, in words"
    ),
]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_NOTE_CHARS, description="the text of a note")]
Title = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_TITLE_CHARS,
        description="a title without a visible character counts as left out",
    ),
]
SourcePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_000,
        description="the origin of the text; a submission replaces the earlier text of the same path in the "
        "same collection",
    ),
]
SourcePathPrefix = Annotated[str, Meta(min_length=1, max_length=1_000)]
Score = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


VISIBLE = re.compile(
    r"[^\s\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
"""Any character but white space and invisible control and format characters, such as U+200B."""


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base class of request bodies."""


def visible_title(title: str | None) -> str | None:
    """Return the title, or None if it has no visible character."""
    return title if VISIBLE.search(title or "") else None


class Response(msgspec.Struct, kw_only=True):
    """Base class of responses: every member is always present."""


# --- search ---------------------------------------------------------------------------------------


class Filters(Request):
    """Further conditions on the documents of a search."""

    format: (
        Annotated[
            list[str],
            Meta(
                max_length=20,
                description=f"formats, at least one of them required, case-insensitive: {', '.join(FORMATS)}",
            ),
        ]
        | None
    ) = None
    source_type: (
        Annotated[
            list[str],
            Meta(
                max_length=20,
                description="values of the metadata member `source_type`, at least one of them required",
            ),
        ]
        | None
    ) = None
    date_from: Annotated[str, Meta(description="RFC 3339 date or time, inclusive")] | None = None
    date_to: (
        Annotated[str, Meta(description="RFC 3339 date (the whole UTC day) or time, inclusive")] | None
    ) = None
    date_field: DateField = "created_at"
    source_path_prefix: SourcePathPrefix | None = None


class RankingWeights(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The weights of the parts of a final score, which add up to 1. An omitted weight is 0."""

    semantic: Score = 0.0
    recency: Score = 0.0
    reputation: Score = 0.0
    feedback: Score = 0.0


class Ranking(Request):
    """Order of results by further criteria than their match with the query.

    `score` is then `w1 * semantic + w2 * recency + w3 * reputation + w4 * feedback`, each from 0 to 1:

    - semantic: the score without this ranking (in mode `vector` the cosine), or the score of a reranker
    - recency: `exp(-decay_rate * days_since_update)`, in whole days since the document's `updated_at`
    - reputation: `source_type_weight[source_type]`, by the document's metadata
    - feedback: `click_rate * 0.5 + rating_avg * 0.5`, as in `Feedback`

    It orders the 100 best results by `semantic`, or three times `top` if that is more; after a reranker, the
    results that the reranker has read. `min_score`, `total` and `weak` refer to the first scores. Omitted
    members have the defaults of the engine. A weight of 1 for `semantic` leaves the order unchanged.
    """

    ranking_weights: Annotated[
        RankingWeights,
        Meta(
            description="weights that add up to 1; if all are omitted, semantic 0.7, recency 0.15, "
            "reputation 0.10 and feedback 0.05, unless the engine has other defaults for this kind of query"
        ),
    ] = RankingWeights()
    decay_rate: (
        Annotated[
            float, Meta(ge=0, le=10, description="decay of the recency per day; 0.01 halves it in 69 days")
        ]
        | None
    ) = None
    source_type_weight: Annotated[
        dict[str, Score],
        Meta(
            max_length=20,
            description="reputations by source type, in addition to those of the engine, by default "
            "confluence 1, web 0.7 and manual 0.4; an unlisted source type has the reputation of `manual`",
        ),
    ] = {}


class SearchRequest(Request):
    """`POST /search`."""

    query: Annotated[
        Query,
        Meta(
            description="the search text, in words. Text in double quotation marks (straight, curly, «…») is "
            "a phrase: if at most six words are outside phrases and exclusions, or with `strict`, every "
            "result contains it in its text, heading or title; otherwise passages with it score higher. A "
            "minus directly before a phrase, or before a word of at least three letters, at the start or "
            "after white space, excludes passages that contain it; in a query of several lines it excludes "
            "nothing, and beside options such as `-v` or `--all` it excludes no word. A query with "
            "exclusions only is refused"
        ),
    ]
    top: Annotated[int, Meta(ge=1, le=100, description="maximum number of results")] = 10
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS, description="tags, all of them required")] = []
    tags_any: Annotated[
        list[Tag], Meta(max_length=MAX_TAGS, description="tags, at least one of them required")
    ] = []
    doc_type: DocType | None = None
    mode: Mode | None = None
    fts_only: bool | None = None
    min_score: Score = 0.0
    filters: Filters | None = None
    explain: bool = False
    ranking: (
        Annotated[
            Ranking,
            Meta(description="rank by recency, reputation and feedback too; default: the engine's setting"),
        ]
        | None
    ) = None
    strict: Annotated[
        bool,
        Meta(
            description="every phrase of the query is a condition, and no result is without it. By default, "
            "if no passage contains the phrases, the best without them follow, with `without_phrase`"
        ),
    ] = False
    rerank: (
        Annotated[
            bool,
            Meta(description="reorder the best results by a reranker; default: true if the engine has one"),
        ]
        | None
    ) = None
    neighbors: Annotated[
        int, Meta(ge=0, le=MAX_NEIGHBORS, description="number of chunks to add before and after each result")
    ] = 0
    collapse: Annotated[
        bool,
        Meta(
            description="merge near duplicates of a better result into its `duplicates`, and results "
            "adjacent to a better one into its `before` and `after`; later results move up"
        ),
    ] = False
    per_document: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100,
                description="maximum number of results of one document on a page, as long as results of "
                "other documents score at least half as much as the best on the page",
            ),
        ]
        | None
    ) = None
    max_chars: (
        Annotated[
            int,
            Meta(
                ge=100, le=1_000_000, description="maximum length of the text of all results, in characters"
            ),
        ]
        | None
    ) = None
    max_tokens: (
        Annotated[
            int,
            Meta(
                ge=50,
                le=1_000_000,
                description="the same limit in tokens, an estimate: the engine's model counts each text "
                "separately, and other models count differently. Of two limits, the stricter one applies",
            ),
        ]
        | None
    ) = None
    detail: Annotated[
        Detail,
        Meta(
            description="`locations`: titles and locations only, with empty texts; `neighbors` has no effect"
        ),
    ] = "full"
    pages: Annotated[
        bool,
        Meta(description="return a `next_cursor` if more results follow, for at most 300 results in total"),
    ] = False
    cursor: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=MAX_CURSOR_CHARS,
                pattern="^[A-Za-z0-9_-]+$",
                description="`next_cursor` of a response to the same request: return the next page of the "
                "same ranking. Passages removed since then are omitted, and passages added since then are on "
                "no page",
            ),
        ]
        | None
    ) = None
    citations: Annotated[
        bool, Meta(description="add a citation to each result, for a later check (`checkCitation`)")
    ] = False


class Citation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A quote and its location: `text[start:end]` of the document's text in this `version`.

    `hash` covers exactly these characters: the first 32 hexadecimal digits of their SHA-256 in UTF-8.
    `begins` holds the first characters of the quote, to find it again after it has moved. `page` and
    `heading` are for readers.
    """

    document: Annotated[
        str,
        Meta(
            pattern=rf"^{UUID}$(?!\n)",
            description="the document's uid",
            examples=["3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"],
        ),
    ]
    version: Version
    page: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    heading: str | None = None
    start: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
    end: Annotated[int, Meta(ge=0, le=MAX_INTEGER, description="at most 20,000 characters after `start`")]
    begins: Annotated[str, Meta(min_length=1, max_length=100)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)", examples=["5f2c" * 8])]


class CitationCheck(Response):
    """The present state of a quote.

    - there: it is where it was cited; if the document has changed elsewhere, `version` has the new number
    - moved: it is in another place of the document now; of several places, the nearest to the old one
    - changed: the document exists and the quote does not, at least not in these words
    - gone: the document was removed

    If the quote is there or has moved, `citation` is the one to use from now on, and `text` is the quote.
    `document_id` and `version` are those of the present document. Members without a value are null.
    """

    status: CitationStatus
    document_id: int | None
    version: int | None
    citation: Citation | None
    text: str | None


class Chunk(Response):
    """A passage. `start` (inclusive) and `end` (exclusive) are offsets into the document's text.

    `table_header`, if present, is the header row of the table in which the passage begins: the names of its
    columns from the first one in the passage on. It is no part of `text`, offsets and citations.
    """

    id: int
    uid: str
    index: Count
    text: str
    page: int | None
    heading: str | None
    start: Count
    end: Count
    table_header: str | msgspec.UnsetType = msgspec.UNSET


class DocumentSummary(Response, kw_only=True):
    """The document of a result."""

    id: int
    uid: str
    title: str
    doc_type: DocType
    format: str | None
    filename: str | None
    source_path: str | None
    metadata: dict[str, Any]
    extraction_method: str = "unknown"
    version: int
    created_at: str
    updated_at: str


class RankingParts(Response):
    """The parts of a final score; `Ranking` has the formula. `kind` is the detected kind of the query."""

    semantic: Score
    recency: Score
    reputation: Score
    feedback: Score
    weights: RankingWeights
    kind: QueryKind


class Explanation(Response):
    """Parts of a score: `weight * max(0, cosine) + (1 - weight) * bm25 / (bm25 + saturation)`.

    `cosine` or `bm25` is null if that part does not count (because of the mode, or without a match). `weight`
    and `saturation` are those of the query: the saturation is proportional to the BM25 score of a passage
    that holds all words of the query. `phrases` is present if the query has phrases that are no conditions:
    the share of them in the passage; the score is raised by this share of a tenth of its distance to 1. With
    a final score, these are the parts of its semantic score, and `ranking` has the parts of the final one.
    `relevance` is the score of a reranker, which replaces the first score.
    """

    cosine: float | None
    bm25: float | None
    weight: float
    saturation: float
    phrases: Score | msgspec.UnsetType = msgspec.UNSET
    relevance: Score | msgspec.UnsetType = msgspec.UNSET
    ranking: RankingParts | msgspec.UnsetType = msgspec.UNSET


class Duplicate(Response):
    """Another place with the text of a result, or with nearly the same text."""

    document_id: int
    chunk_id: int


class SearchResult(Response):
    """One matching passage, best first; `truncated` if `max_chars` or `max_tokens` cut its text.

    `score` is from 0 to 1. It combines the nearness in meaning and the share of the query's words in the
    passage, where rare words weigh more than frequent ones. It is comparable between queries and between
    bases of any size: in mode `hybrid` most relevant passages score more than 0.5, and passages on another
    subject less. It is not a probability. After a reranker it is the reranker's relevance, and with `ranking`
    the final score. `without_phrase`: no passage contains the phrases of the query, and this one is among the
    best without them.
    """

    chunk: Chunk
    score: float
    document: DocumentSummary
    tags: list[str]
    truncated: bool = False
    before: list[Chunk] = []
    after: list[Chunk] = []
    explain: Explanation | None = None
    citation: Citation | msgspec.UnsetType = msgspec.UNSET
    duplicates: list[Duplicate] | msgspec.UnsetType = msgspec.UNSET
    without_phrase: bool | msgspec.UnsetType = msgspec.UNSET


class SearchResponse(Response):
    """`total` counts the chunks that pass the filters and match, independent of `top`.

    `omitted` counts the results, and the neighbours of results, that `max_chars` or `max_tokens` left no room
    for.

    A chunk matches if it holds a word of the query, or its vector is nearer to the query than the threshold
    of the engine's model, and its score is at least `min_score`; the mode determines which of the first two
    conditions apply. By meaning there is always a nearest chunk: if fewer chunks match than `top`, the
    nearest remaining ones follow, so that there may be more results than `total`. `total_exact` is false if
    counting would take too long: `total` is then a lower bound. If no passage contains the phrases that are
    conditions, `total` is 0, and results without them follow, unless `strict` is set.

    `collapse` and `per_document` choose among three times as many results as `top`, or 30; `total` counts
    all.

    `reranked` is present if a reranker was requested. True: the reranker has read the best candidates, all
    results among them, and `score` is its relevance, from 0 to 1. That score is comparable between queries as
    far as the scores of the reranker's model are. `min_score`, `total` and `weak` refer to the first scores.
    False: results and scores are the first ones, and `rerank_failure` has the reason.

    `incomplete` is present, with the reason, if passages that may match could not be searched.
    """

    results: list[SearchResult]
    total: Count
    mode: Mode
    took_ms: float
    weak: bool
    omitted: Count = 0
    total_exact: bool | msgspec.UnsetType = msgspec.UNSET
    reranked: bool | msgspec.UnsetType = msgspec.UNSET
    rerank_failure: str | msgspec.UnsetType = msgspec.UNSET
    incomplete: str | msgspec.UnsetType = msgspec.UNSET
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


# --- jobs -----------------------------------------------------------------------------------------


class NoteRequest(Request):
    """`POST /jobs` as JSON: a note to ingest."""

    text: Text
    title: Title | None = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] = []
    metadata: dict[str, Any] = {}
    source_path: SourcePath | None = None
    dedup_scope: Annotated[
        str,
        Meta(
            max_length=200,
            description="scope of deduplication: equal texts in it are one document, regardless of trailing "
            "white space",
        ),
    ] = ""

    def __post_init__(self) -> None:
        self.title = visible_title(self.title)


class FileFields(Request):
    """`POST /jobs` as multipart: the fields beside the part `file`. `tags` and `metadata` are JSON texts.

    The extension of a file's name determines its format. A file of unknown extension is accepted as text if
    the part `file` has `Content-Type: text/plain`, and is refused otherwise. The `charset` of that header is
    the encoding of a text (labels of the WHATWG Encoding Standard); the text is kept in UTF-8. Other texts
    declare their encoding or are UTF-8; an engine may detect another encoding if it is certain, in texts of
    at least 200 bytes.
    """

    title: Title | None = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] = []
    metadata: dict[str, Any] = {}
    source_path: SourcePath | None = None
    dedup_scope: Annotated[str, Meta(max_length=200)] = ""
    force_ocr: Annotated[
        bool,
        Meta(
            description="read a PDF by OCR even if it contains text; JPG and PNG are always read by OCR, and "
            "other formats are refused. A document of the same file is reused only if it was read by OCR, too"
        ),
    ] = False

    def __post_init__(self) -> None:
        self.title = visible_title(self.title)


class JobError(Response):
    """Reason of a job's failure: a code of the errors module, and advice."""

    code: str
    message: str


class Job(Response):
    """One ingestion job. `progress` runs from 0 to 1; `document_id` is set once it has completed.

    A job of kind `update` replaces the text of a note: `document_id` is that note from the start, and `tags`
    are the tags of the note at that time. A note that already has this text and title does not change, and
    the outcome is `unchanged`. `retryable`, `elapsed_seconds` and `estimated_seconds` were added later than
    the other members: clients work without them if an engine omits them.

    A source is a collection (without one, the `dedup_scope`) and a `source_path`, and has one document. Jobs
    of a source run one after another in the order of acceptance; the last one wins. Until such a job has
    completed, searches find the earlier text, and from then on the new one. The document stays the same one
    unless it has another source, or was also sent without a source path. Its title follows the new text, tags
    are merged, and metadata are replaced if the request has any. A document is removed with its last source.
    A note that was only sent without a source path belongs, from then on, to the first source that sends the
    same text.
    """

    id: str
    status: JobStatus
    kind: JobKind
    title: str
    filename: str | None
    tags: list[str]
    step: str
    progress: float
    completed_steps: Count
    total_steps: Count
    attempts: Count
    document_id: int | None
    document_uid: str | None
    deduplicated: bool
    error: JobError | None
    created_at: str
    started_at: str | None
    finished_at: str | None
    retryable: Annotated[
        bool,
        Meta(
            description="true if the job failed, a retry may succeed and its input is kept: `retryJob` "
            "queues it again"
        ),
    ] = False
    elapsed_seconds: Annotated[
        float | None,
        Meta(
            description="seconds since the start of the job, before that since its acceptance, by the "
            "engine's clock"
        ),
    ] = None
    estimated_seconds: Annotated[
        float | None,
        Meta(
            description="estimated seconds until the end of the job, including the jobs before it, from the "
            "durations of earlier jobs; null if it has ended or there is no estimate yet"
        ),
    ] = None
    outcome: (
        Annotated[
            SourceOutcome,
            Meta(
                description="for a completed job: the source is new, already had this text, or had a "
                "different one; without a source path, the text is new or already known"
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    left_out: (
        Annotated[
            list[LeftOut],
            Meta(
                description="for a completed job: members of the request that were not applied, because the "
                f"document has its own title or metadata, or {MAX_TAGS} tags"
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET


class JobList(Response):
    """Newest first."""

    jobs: list[Job]
    total: Count
    limit: Count
    offset: Count


# --- documents ------------------------------------------------------------------------------------


class Fidelity(Response):
    """Report of the reading of a file: decisions that were guesses, and parts that were left out."""

    encoding: Annotated[
        str | None, Meta(description="detected encoding of a text that is not UTF-8 and declares none")
    ] = None
    columns: Annotated[
        Count | None, Meta(description="most columns of a CSV file, whose separator was detected")
    ] = None
    ocr_pages: Annotated[list[Count], Meta(description="pages with text by OCR; a picture is page 1")] = []
    ocr_confidence: Annotated[
        Score | None, Meta(description="mean confidence of the recognizer in the text of these pages")
    ] = None
    pages_without_text: list[Count] = []
    left_out: Annotated[
        list[str], Meta(description="names of parts that were not read, such as attachments of an e-mail")
    ] = []


class Document(Response):
    """A document without its chunks. `status` is `empty` if no text was found, with the reason."""

    id: int
    uid: str
    title: str
    doc_type: DocType
    format: str | None
    filename: str | None
    source_path: str | None
    source_paths: list[str]
    size_bytes: Count
    sha256: str
    tags: list[str]
    metadata: dict[str, Any]
    status: DocumentStatus
    status_reason: Annotated[
        str | None, Meta(description="reason for an empty document, or the unread pages of a searchable one")
    ]
    extraction_method: Annotated[
        str,
        Meta(description="text_extraction, image_analysis (OCR), mixed_extraction (both) or another value"),
    ]
    pages: int | None
    chunk_count: Count
    version: int
    created_at: str
    updated_at: str
    original: Annotated[
        bool | msgspec.UnsetType,
        Meta(description="true if the original file is kept, for getOriginal; otherwise absent"),
    ] = msgspec.UNSET
    fidelity: Annotated[
        Fidelity | msgspec.UnsetType,
        Meta(description="absent from notes, and from files read before this report existed"),
    ] = msgspec.UNSET


class SimilarNote(Response):
    """A note on the same subject as another one. `score` is the similarity of their embeddings."""

    id: int
    uid: str
    first_line: str
    score: Score


class DocumentDetail(Document, kw_only=True):
    """A document with a slice of its chunks, in order; `chunk_count` is the number of all chunks.

    `text` is present if it was requested and the document is a note: the whole text as it was sent. A file
    has only chunks. `similar` is present if it was requested, the document is a note and the index answers:
    the notes most similar to the beginning of this one, the most similar first.
    """

    chunks: list[Chunk]
    chunk_offset: Count
    chunk_limit: Count
    text: str | msgspec.UnsetType = msgspec.UNSET
    similar: list[SimilarNote] | msgspec.UnsetType = msgspec.UNSET


class DocumentList(Response):
    """One page of the matching documents."""

    documents: list[Document]
    total: Count
    limit: Count
    offset: Count


class PastVersion(Response, kw_only=True):
    """A former state of a document: before its content was replaced, or before it was `removed`.

    `version` is its number at that time, and `updated_at` the start of that version. It is kept until
    `expires_at`.
    """

    document_id: int
    uid: str
    version: int
    removed: bool
    title: str
    doc_type: DocType
    format: str | None
    filename: str | None
    source_paths: list[str]
    size_bytes: Count
    sha256: str
    tags: list[str]
    chunk_count: Count
    updated_at: str
    kept_at: Annotated[str, Meta(description="time of the replacement or removal")]
    expires_at: str


class PastVersionDetail(PastVersion, kw_only=True):
    """A version with a part of its text: from the character `text_offset` of `text_length`.

    The text of a note is the text that was sent; the text of a file is its passages, each at its offset.
    """

    metadata: dict[str, Any]
    text: str
    text_offset: Count
    text_length: Count


class PastVersionList(Response):
    """Ordered by the time of replacement or removal, latest first."""

    versions: list[PastVersion]
    total: Count
    limit: Count
    offset: Count


class Purged(Response):
    """The number of versions that were purged."""

    versions: Count


class Picture(Response):
    """A picture, made by the engine: it has no metadata and no active content of the original file."""

    media_type: Literal["image/png", "image/jpeg"]
    content: Annotated[bytes, Meta(description="the picture, in base64")]


class Removed(Response):
    """The extent of a deletion. `bytes` is the size of the originals.

    `document_id` and `document_uid` identify the one document of the request, by whichever of both it was
    addressed. Earlier engines omit them.
    """

    documents: Count
    chunks: Count
    bytes: Count
    jobs_cancelled: Count = 0
    document_id: int | msgspec.UnsetType = msgspec.UNSET
    document_uid: str | msgspec.UnsetType = msgspec.UNSET


class NotePatch(Request):
    """`PATCH /notes/{id}`: a new text, a new title, or both.

    `expected_version` has the meaning of `If-Match`; if both are sent, both must match.
    """

    text: Text | None = None
    title: Title | None = None
    expected_version: Version | None = None

    def __post_init__(self) -> None:
        self.title = visible_title(self.title)


class MetadataRequest(Request):
    """`PUT /documents/{id}/metadata`."""

    metadata: dict[str, Any]


class FeedbackRequest(Request):
    """`PUT /documents/{id}/feedback`."""

    signal: Annotated[
        Signal,
        Meta(
            description="usefulness of the document for the task, or `clicked` if it was opened; of two "
            "ratings the later one counts"
        ),
    ]


class Feedback(Response):
    """The feedback of all voices on a document. A voice counts once, regardless of the number of its signals.

    `voices` is the number of voices with any signal, `clicked` of those that opened the document or found it
    useful. `score` is `click_rate * 0.5 + rating_avg * 0.5`. Four neutral voices are added, so that a few
    signals change it little: `click_rate = clicked / (voices + 4)`, `rating_avg = (useful + 2) / (useful +
    not_useful + 4)`.
    """

    document_id: int
    voices: Count
    clicked: Count
    useful: Count
    not_useful: Count
    score: Score


class TagsRequest(Request):
    """`POST /documents/{id}/tags`. A document has at most 64 tags; beyond that, no tag is added."""

    tags: Annotated[list[Tag], Meta(min_length=1, max_length=MAX_TAGS)]


class TagCount(Response):
    """The number of documents and chunks with a tag."""

    tag: str
    documents: Count
    chunks: Count


class TagList(Response):
    """Tags in alphabetical order."""

    tags: list[TagCount]
    total: Count
    limit: Count
    offset: Count


# --- state ----------------------------------------------------------------------------------------


class ModelInfo(Response):
    """The embedding model. `max_tokens` is its window; longer text is split before it."""

    name: str
    dimensions: Count
    max_tokens: Count
    loaded: bool


class DeviceInfo(Response):
    """The device that runs the model."""

    type: str
    threads: Count


class DocumentCounts(Response):
    """Documents by state and by type."""

    total: Count
    searchable: Count
    empty: Count
    by_type: dict[str, int]


class QueueState(Response):
    """Jobs by state."""

    queued: Count
    running: Count
    completed: Count
    failed: Count
    cancelled: Count


class StorageInfo(Response):
    """The location of the data: `bytes` on disk, `free_bytes` available there, `originals_bytes` ingested.

    `accessible`: the last attempt to read it succeeded. If it failed, an issue has the reason, and all
    figures of the status are the last known ones. `failed_bytes` were sent for failed jobs and are kept for a
    retry: for `failed_seconds_limit`, and at most `failed_bytes_limit`; the oldest are removed first.
    `kept_originals_bytes` is the size of the files that are kept as they were sent, each content once; an
    engine that keeps no files omits it. A caller without permission gets an empty `path`, and figures of
    zero.
    """

    path: str
    bytes: Count
    free_bytes: Count
    originals_bytes: Count
    accessible: bool = True
    failed_bytes: Count = 0
    failed_bytes_limit: Count = 0
    failed_seconds_limit: Annotated[float, Meta(ge=0)] = 0.0
    kept_originals_bytes: Count | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_withheld(self) -> bool:
        """True if the caller may not see the storage; all figures are then zero."""
        return not self.path


class SandboxInfo(Response):
    """The sandbox of the processes that read files: the parts in force, and a reason for each missing part.

    `setting`: files are read with all available parts (`auto`), only with all parts (`require`), or without a
    sandbox (`off`). Engines of other makers may have parts of other names.
    """

    setting: Literal["auto", "require", "off"]
    holds: list[str]
    missing: dict[str, str]


Feature = Literal["access"]
"""An optional capability. `access`: rights and access scopes of callers are enforced (`X-KB-Access`)."""


class GrowthWeek(Response):
    """The documents and passages that were created until the end of a week; `week` is its Monday."""

    week: str
    documents: Count
    chunks: Count


class QuestionDay(Response):
    """The questions of a day (UTC): all of them, and those without a match or with `weak` results."""

    day: str
    total: Count
    unanswered: Count


class History(Response):
    """Counts over time. `growth`: the last 52 weeks, of the documents that exist now.

    `languages`: the documents by language (ISO 639-1), if it is known. `questions`: the last 30 days with a
    question, the oldest first. A search with a `cursor`, or with `detail` `locations`, is no question; a
    result of `vectorSearch` is never `weak`. `unanswered`: the latest questions that found nothing, if the
    engine keeps their texts. Both are omitted by an engine that does not count questions, and for callers
    with a limited scope or without the right to administer.
    """

    growth: list[GrowthWeek]
    languages: dict[str, Count]
    questions: list[QuestionDay] | msgspec.UnsetType = msgspec.UNSET
    unanswered: list[str] | msgspec.UnsetType = msgspec.UNSET


class Status(Response):
    """`GET /status`. `issues` is empty when all is well.

    Counts cover the caller's access scope. A caller whose scope is limited, or without the right to
    administer, gets an empty `storage` and no `sandbox`. An engine that does not read files in a sandbox
    omits `sandbox` as well. `open_failures` counts the failed jobs without a later completed job of the same
    source (its path, or without one the file name in the same `dedup_scope`), but for updates of notes that
    failed with `version_conflict`; an engine may omit it.
    `history` is for queries that ask for it; an engine may omit it, too.
    """

    version: str
    model: ModelInfo
    device: DeviceInfo
    documents: DocumentCounts
    chunks: Count
    queue: QueueState
    storage: StorageInfo
    issues: list[str]
    started_at: str
    last_updated: str | None
    sandbox: SandboxInfo | msgspec.UnsetType = msgspec.UNSET
    features: list[Feature] | msgspec.UnsetType = msgspec.UNSET
    open_failures: Count | msgspec.UnsetType = msgspec.UNSET
    history: History | msgspec.UnsetType = msgspec.UNSET

    @property
    def failures(self) -> int:
        """The failed jobs that count as open: all of them if the engine does not say."""
        return self.queue.failed if self.open_failures is msgspec.UNSET else self.open_failures


class Health(Response):
    """`GET /healthz` and `GET /readyz`. `issues`: parts that do not work although the engine serves."""

    status: Literal["ok", "ready"]
    issues: list[str] | msgspec.UnsetType = msgspec.UNSET
