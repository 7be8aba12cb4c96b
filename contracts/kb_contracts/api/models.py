"""The wire models of the engine API, version 3.

Times are RFC 3339 in UTC with a `Z`. Offsets and lengths of text count Unicode code points. Sizes of
files and storage are bytes. Requests refuse unknown fields; answers may gain fields.
"""

from __future__ import annotations

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
"""What became of a source: it was not known before, it has this content already, or it had another."""
LeftOut = Literal["title", "tags", "metadata"]
SortBy = Literal["id", "title", "filename", "created_at", "updated_at", "size_bytes"]
SortOrder = Literal["asc", "desc"]
DateField = Literal["created_at", "updated_at"]
Detail = Literal["full", "locations"]
"""How much of each result a search gives: all, or its title and its place without any text."""
QueryKind = Literal["exact", "keywords", "question"]
"""What a query is by its form: names something exactly, a few words, or a question."""
CitationStatus = Literal["there", "moved", "changed", "gone"]
Signal = Literal["useful", "not_useful", "clicked"]
"""What a voice says of a document: two ratings, of which the last one counts, and that it was opened."""

MAX_INTEGER = 9_223_372_036_854_775_807
MAX_NOTE_CHARS = 1_000_000
MAX_QUERY_CHARS = 4_000
MAX_TITLE_CHARS = 500
MAX_TAGS = 64
MAX_NEIGHBORS = 5
MAX_QUOTE_CHARS = 20_000
MAX_CURSOR_CHARS = 262_144
MAX_CITATION_CHARS = 1_000
"""Of a citation that is written as one line."""

NOT_BLANK = r"[^\s\x1c-\x1f\x85\ufeff]"
"""The pattern of a text that has something to be seen in it; what any dialect calls blank is blank."""

_TAG = r"(?!\.{1,2}(,|$))[^\x00-\x20\x7f,/]([^\x00-\x1f\x7f,/]*[^\x00-\x20\x7f,/])?"
Tag = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        pattern=rf"^{_TAG}$(?!\n)",
        description="a tag: no control characters, commas or slashes, no space at either end, not . or ..",
        examples=["collection:documents"],
    ),
]
Tags = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2_000,
        pattern=rf"^{_TAG}(,{_TAG})*$(?!\n)",
        description="tags between commas, all of these",
        examples=["collection:documents,insurance"],
    ),
]
DocumentId = Annotated[int, Meta(ge=1, le=MAX_INTEGER, description="the document's number")]
Version = Annotated[int, Meta(ge=1, le=MAX_INTEGER, description="raised by every change of the document")]
Query = Annotated[
    str,
    Meta(
        min_length=1, max_length=MAX_QUERY_CHARS, pattern=NOT_BLANK, description="what to look for, in words"
    ),
]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_NOTE_CHARS, description="the text of a note")]
Title = Annotated[str, Meta(min_length=1, max_length=MAX_TITLE_CHARS)]
SourcePath = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1_000,
        description="where the text came from; sent again in the same collection it replaces what is there",
    ),
]
SourcePathPrefix = Annotated[str, Meta(min_length=1, max_length=1_000)]
Score = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The parent of request bodies."""


class Response(msgspec.Struct, kw_only=True):
    """The parent of answers: every member is always present."""


# --- search ---------------------------------------------------------------------------------------


class Filters(Request):
    """Further conditions on the documents that may answer."""

    format: (
        Annotated[
            list[str],
            Meta(
                max_length=20,
                description=f"any of these, in any case: {', '.join(FORMATS)}",
            ),
        ]
        | None
    ) = None
    source_type: (
        Annotated[
            list[str], Meta(max_length=20, description="values of the metadata member `source_type`, any of")
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
    """The shares of a final score, which add up to 1; what is left out has none."""

    semantic: Score = 0.0
    recency: Score = 0.0
    reputation: Score = 0.0
    feedback: Score = 0.0


class Ranking(Request):
    """How results are ordered by more than how well they answer.

    `score` is then `w1 * semantic + w2 * recency + w3 * reputation + w4 * feedback`, each from 0 to 1:

    - semantic: the score without all this (in mode `vector` the cosine), or the one that a reranker gave
    - recency: `exp(-decay_rate * days_since_update)`, in whole days since the document's `updated_at`
    - reputation: `source_type_weight[source_type]`, by the document's metadata
    - feedback: `click_rate * 0.5 + rating_avg * 0.5`, as `Feedback` has it

    It orders the 100 best by `semantic`, or three times `top` where that is more; after a reranker, those
    that this has read. `min_score`, `total` and `weak` are about the first scores. What is left out is as the
    engine is set. A weight of 1 for `semantic` leaves the order as it is.
    """

    ranking_weights: Annotated[
        RankingWeights,
        Meta(
            description="add up to 1; where none is named, semantic 0.7, recency 0.15, reputation 0.10 and "
            "feedback 0.05, unless the engine is set to others for this kind of query"
        ),
    ] = RankingWeights()
    decay_rate: (
        Annotated[float, Meta(ge=0, le=10, description="per day; 0.01 halves a recency in 69 days")] | None
    ) = None
    source_type_weight: Annotated[
        dict[str, Score],
        Meta(
            max_length=20,
            description="reputations beside those of the engine, by default confluence 1, web 0.7 and manual "
            "0.4; a source type that is not named has that of `manual`",
        ),
    ] = {}


class SearchRequest(Request):
    """`POST /search`."""

    query: Annotated[
        Query,
        Meta(
            description="what to look for, in words. What stands in double quotation marks (straight, curly, "
            "«…») is a phrase: only passages that hold it in text, heading or title are results. A minus "
            "right before a phrase, or a word of three letters or more, at the start or behind white space, "
            "leaves out passages that hold it; not in several lines, nor a word beside options such as `-v` "
            "or `--all`. A query that only leaves out is refused"
        ),
    ]
    top: Annotated[int, Meta(ge=1, le=100, description="how many results at the most")] = 10
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS, description="all of these")] = []
    tags_any: Annotated[list[Tag], Meta(max_length=MAX_TAGS, description="at least one of these")] = []
    doc_type: DocType | None = None
    mode: Mode | None = None
    fts_only: bool | None = None
    min_score: Score = 0.0
    filters: Filters | None = None
    explain: bool = False
    ranking: (
        Annotated[
            Ranking,
            Meta(description="order by recency, reputation and feedback too; else as the engine is set"),
        ]
        | None
    ) = None
    rerank: (
        Annotated[
            bool,
            Meta(description="whether a reranker has a second look; by default where the engine has one"),
        ]
        | None
    ) = None
    neighbors: Annotated[
        int, Meta(ge=0, le=MAX_NEIGHBORS, description="chunks to add before and after each result")
    ] = 0
    collapse: Annotated[
        bool,
        Meta(
            description="near duplicates of a better result become its `duplicates`, and results that stand "
            "beside a better one its `before` and `after`; those behind move up"
        ),
    ] = False
    per_document: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100,
                description="how many results of one document a page has at the most, as long as others "
                "score at least half as much as its best",
            ),
        ]
        | None
    ) = None
    max_chars: (
        Annotated[int, Meta(ge=100, le=1_000_000, description="bound on the text of all results together")]
        | None
    ) = None
    max_tokens: (
        Annotated[
            int,
            Meta(
                ge=50,
                le=1_000_000,
                description="the same bound in tokens, an estimate: as the engine's model counts them, each "
                "text by itself; a reader's model counts others. Of two bounds the tighter one rules",
            ),
        ]
        | None
    ) = None
    detail: Annotated[
        Detail,
        Meta(description="`locations`: titles and places only, every text empty; `neighbors` adds nothing"),
    ] = "full"
    pages: Annotated[
        bool,
        Meta(description="whether the answer has a `next_cursor` where more follows, of 300 results at most"),
    ] = False
    cursor: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=MAX_CURSOR_CHARS,
                pattern="^[A-Za-z0-9_-]+$",
                description="`next_cursor` of an answer to this same request: the page after it, of the same "
                "ranking. What was removed since is left out, and what came since is on no page",
            ),
        ]
        | None
    ) = None
    citations: Annotated[
        bool, Meta(description="cite each result, so that it can be checked later (`checkCitation`)")
    ] = False


class Citation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A quote and where it stood: `text[start:end]` of the document's text in this `version`.

    `hash` is over exactly these characters: the first 32 hexadecimal digits of their SHA-256 in UTF-8.
    `begins` are the first of them, by which they are found where they have moved. `page` and `heading` are
    for readers.
    """

    document: Annotated[
        str,
        Meta(
            pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$(?!\n)",
            description="its uid",
            examples=["3f0c5d7e-9a53-4f1c-8e2b-0b8f3f2f9b11"],
        ),
    ]
    version: Version
    page: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    heading: str | None = None
    start: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
    end: Annotated[int, Meta(ge=0, le=MAX_INTEGER, description="20,000 characters after `start` at most")]
    begins: Annotated[str, Meta(min_length=1, max_length=100)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)", examples=["5f2c" * 8])]


class CitationCheck(Response):
    """What has become of a quote.

    - there: it stands where it was cited; where the document has changed elsewhere, `version` says so
    - moved: it stands in another place of the document now, of several the nearest to the old one
    - changed: the document is there and the quote is not, at least not in these words
    - gone: the document was removed

    `citation` is the one to use from now on, and `text` the quote, where it is there or has moved.
    `document_id` and `version` are those of the document as it is; all are null where there is none.
    """

    status: CitationStatus
    document_id: int | None
    version: int | None
    citation: Citation | None
    text: str | None


class Chunk(Response):
    """A passage. `start` (inclusive) and `end` (exclusive) are offsets into the document's text."""

    id: int
    uid: str
    index: Count
    text: str
    page: int | None
    heading: str | None
    start: Count
    end: Count


class DocumentSummary(Response, kw_only=True):
    """The document that a result belongs to."""

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
    """What a final score was made of; `Ranking` has the formula. `kind` is what the query was taken for."""

    semantic: Score
    recency: Score
    reputation: Score
    feedback: Score
    weights: RankingWeights
    kind: QueryKind


class Explanation(Response):
    """How a score came about: `weight * max(0, cosine) + (1 - weight) * bm25 / (bm25 + saturation)`.

    `cosine` or `bm25` is null where that part had no say (mode, or no match). `weight` and `saturation` are
    those of the query: the saturation is in proportion to the bm25 of a passage that holds all of its words.
    Where a final score was made, this is how its semantic part came about, and `ranking` has all parts.
    `relevance` is what a reranker has given instead of that score.
    """

    cosine: float | None
    bm25: float | None
    weight: float
    saturation: float
    relevance: Score | msgspec.UnsetType = msgspec.UNSET
    ranking: RankingParts | msgspec.UnsetType = msgspec.UNSET


class Duplicate(Response):
    """Where a result's text stands too, or one that is nearly the same."""

    document_id: int
    chunk_id: int


class SearchResult(Response):
    """One passage that answers, best first; `truncated` when `max_chars` or `max_tokens` cut its text.

    `score` is from 0 to 1: how near the passage lies by meaning, and how much of the query's words it holds,
    where a rare word counts for more than a frequent one. So it means the same for every query and in a base
    of any size: what answers mostly has more than 0.5 in mode `hybrid`, what is about something else less. It
    is no probability. After a reranker it is the relevance that this gave, with `ranking` the final score.
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


class SearchResponse(Response):
    """`total` counts the chunks that pass the filters and match, however many were asked for.

    `omitted` counts the results, and the chunks beside results, that `max_chars` or `max_tokens` left no
    room for.

    A chunk matches that holds a word of the query, or lies as near to it as the engine's model calls near,
    and scores `min_score` at least; the mode says which of the two counts. By meaning something is always
    nearest: where fewer match than `top`, the nearest of the others follow, so that there may be more results
    than `total`. `total_exact` is false where counting would take too long: as many match, or more.

    `collapse` and `per_document` choose among three times as many results as `top`, or 30; `total` counts
    all.

    `reranked` is there where a reranker was wanted. True: it has read the best candidates, all results among
    them, and `score` is the relevance that it gave, from 0 to 1, which compares from one query to the next as
    far as its model's does; `min_score`, `total` and `weak` are about the first scores. False: results and
    scores are the first ones, and `rerank_failure` says why.

    `incomplete` is there where passages that might have answered could not be searched, and says why.
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
    """`POST /jobs` as JSON: a note to take in."""

    text: Text
    title: Title | None = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] = []
    metadata: dict[str, Any] = {}
    source_path: SourcePath | None = None
    dedup_scope: Annotated[
        str,
        Meta(
            max_length=200,
            description="the same text twice in one scope is one document; trailing white space is ignored",
        ),
    ] = ""


class FileFields(Request):
    """`POST /jobs` as multipart: the fields beside the part `file`. `tags` and `metadata` are JSON texts.

    A file's format is that of its name's extension. One of unknown extension is taken as text where the part
    `file` says `Content-Type: text/plain`, and else refused.
    """

    title: Title | None = None
    tags: Annotated[list[Tag], Meta(max_length=MAX_TAGS)] = []
    metadata: dict[str, Any] = {}
    source_path: SourcePath | None = None
    dedup_scope: Annotated[str, Meta(max_length=200)] = ""
    force_ocr: Annotated[
        bool,
        Meta(
            description="read a PDF by OCR even where it holds text; JPG and PNG always are, and any other "
            "format is refused. A document of the same file is then the same only where it was read by OCR"
        ),
    ] = False


class JobError(Response):
    """Why a job failed: a code of the errors module, and what to do."""

    code: str
    message: str


class Job(Response):
    """A piece of ingestion. `progress` runs from 0 to 1; `document_id` is set when it has completed.

    Of the kind `update` it replaces the text of a note: `document_id` is that note from the start, `tags` are
    those that the note had then. A note that has this text and title changes not at all, and the outcome is
    `unchanged`. `retryable`, `elapsed_seconds` and `estimated_seconds` came later than the
    others: clients do without them where an engine leaves them out.

    A source is a collection (without one, the `dedup_scope`) and a `source_path`, and has one document. Jobs
    of a source follow one another in the order of acceptance, and the last one stays. Until such a job has
    completed the earlier text answers; then the new one does, in the same document where no other source has
    it and nobody sent it without a source path. That document's title follows the new text, tags are united,
    and metadata are replaced where some were sent. A document goes with its last source. A note that was sent
    without a source path alone is from then on that of the first source that sends the same text.
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
            description="it failed, a retry may help, and what was sent is kept: `retryJob` queues it again"
        ),
    ] = False
    elapsed_seconds: Annotated[
        float | None,
        Meta(description="since it was started, before that since it was accepted, by the engine's clock"),
    ] = None
    estimated_seconds: Annotated[
        float | None,
        Meta(
            description="until it will have ended, with what waits before it, as jobs took here so far; "
            "null: it has ended, or nothing is known yet"
        ),
    ] = None
    outcome: (
        Annotated[
            SourceOutcome,
            Meta(
                description="of a completed job: whether the source is new, has this text already, or had "
                "another one; without a source path, whether the text is new"
            ),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    left_out: (
        Annotated[
            list[LeftOut],
            Meta(
                description="of a completed job: what was sent and not taken, because the document has a "
                f"title or metadata of its own, or {MAX_TAGS} tags"
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


class Document(Response):
    """A document without its chunks. `status` is `empty` where no text was found, with the reason."""

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
        str | None,
        Meta(description="why it is empty, or which pages of a searchable document were not read"),
    ]
    extraction_method: Annotated[
        str,
        Meta(description="text_extraction, image_analysis (OCR), mixed_extraction (both) or another word"),
    ]
    pages: int | None
    chunk_count: Count
    version: int
    created_at: str
    updated_at: str
    original: Annotated[
        bool | msgspec.UnsetType,
        Meta(description="true where the file that it was made of is kept, for getOriginal; else absent"),
    ] = msgspec.UNSET


class SimilarNote(Response):
    """A note on the same subject as another one. `score` is the similarity of their embeddings."""

    id: int
    uid: str
    first_line: str
    score: Score


class DocumentDetail(Document, kw_only=True):
    """A document with a slice of its chunks, in order; `chunk_count` is how many there are.

    `text` is there where it was asked for and the document is a note: all of it, as it was sent. A file has
    its chunks alone. `similar` is there where it was asked for, the document is a note and the index answers:
    the notes most similar to the beginning of this one, the most similar first.
    """

    chunks: list[Chunk]
    chunk_offset: Count
    chunk_limit: Count
    text: str | msgspec.UnsetType = msgspec.UNSET
    similar: list[SimilarNote] | msgspec.UnsetType = msgspec.UNSET


class DocumentList(Response):
    """One page of the documents that match."""

    documents: list[Document]
    total: Count
    limit: Count
    offset: Count


class PastVersion(Response, kw_only=True):
    """A document as it stood until its content was replaced, or until it was `removed`.

    `version` is the number that it had then, and `updated_at` since when it had it. At `expires_at` it is
    kept no longer.
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
    kept_at: Annotated[str, Meta(description="when it was replaced or removed")]
    expires_at: str


class PastVersionDetail(PastVersion, kw_only=True):
    """A version with a part of its text: from the character `text_offset` of `text_length`.

    That of a note is what was sent, that of a file its passages, each at its place.
    """

    metadata: dict[str, Any]
    text: str
    text_offset: Count
    text_length: Count


class PastVersionList(Response):
    """The one that was replaced or removed last comes first."""

    versions: list[PastVersion]
    total: Count
    limit: Count
    offset: Count


class Purged(Response):
    """How many versions are kept no longer."""

    versions: Count


class Removed(Response):
    """What a deletion took away. `bytes` is the size of the originals.

    `document_id` and `document_uid` are of the one document that the request was about, by whichever it was
    addressed; an earlier engine leaves them out.
    """

    documents: Count
    chunks: Count
    bytes: Count
    jobs_cancelled: Count = 0
    document_id: int | msgspec.UnsetType = msgspec.UNSET
    document_uid: str | msgspec.UnsetType = msgspec.UNSET


class NotePatch(Request):
    """`PATCH /notes/{id}`: a new text, a new title, or both.

    `expected_version` says the same as `If-Match`; where both are sent, the note must have each.
    """

    text: Text | None = None
    title: Title | None = None
    expected_version: Version | None = None


class MetadataRequest(Request):
    """`PUT /documents/{id}/metadata`."""

    metadata: dict[str, Any]


class FeedbackRequest(Request):
    """`PUT /documents/{id}/feedback`."""

    signal: Annotated[
        Signal,
        Meta(
            description="whether it was useful for the task at hand, or that it was opened; of two ratings "
            "the later one counts"
        ),
    ]


class Feedback(Response):
    """What all voices together say of a document. A voice counts once, however often it is heard.

    `voices` gave any signal, `clicked` opened it or found it useful. `score` is
    `click_rate * 0.5 + rating_avg * 0.5`, where four voices are added that neither opened nor rated it, so
    that a few move it little: `click_rate = clicked / (voices + 4)`,
    `rating_avg = (useful + 2) / (useful + not_useful + 4)`.
    """

    document_id: int
    voices: Count
    clicked: Count
    useful: Count
    not_useful: Count
    score: Score


class TagsRequest(Request):
    """`POST /documents/{id}/tags`. The document may have 64 tags; where these are too many, none is added."""

    tags: Annotated[list[Tag], Meta(min_length=1, max_length=MAX_TAGS)]


class TagCount(Response):
    """How much carries a tag."""

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
    """What the model runs on."""

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
    """Where the data lies; `bytes` on disk, `free_bytes` left there, `originals_bytes` taken in.

    `accessible`: it could be read just now. Where it could not, an issue says why, and all figures of the
    status are those that were read last. `failed_bytes` were sent for failed jobs and are kept, so that those
    can be tried again: for `failed_seconds_limit`, and no more than `failed_bytes_limit`, the oldest going
    first. `kept_originals_bytes` are those of the files that are kept as they were sent, each content once;
    an engine that keeps none leaves it out. Whoever may not know gets an empty `path`, and figures of zero.
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
        """Whether the caller may not know; the figures then say nothing."""
        return not self.path


class SandboxInfo(Response):
    """Where files are read: which parts of the sandbox hold, and for each other one why it does not.

    `setting`: whether files are read with what can be had, only with all parts, or without a sandbox. The
    parts of an engine of another make may have other names.
    """

    setting: Literal["auto", "require", "off"]
    holds: list[str]
    missing: dict[str, str]


Feature = Literal["access"]
"""What an engine may do beside what every engine does. `access`: it enforces who may do what, and with which
documents (`X-KB-Access`)."""


class Status(Response):
    """`GET /status`. `issues` is empty when all is well.

    Counts are of what the caller reaches. Whoever reaches not all, or may not administer, gets an empty
    `storage` and no `sandbox`, which an engine that does not read files apart lacks too.
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


class Health(Response):
    """`GET /healthz` and `GET /readyz`. `issues`: what does not work although the engine serves."""

    status: Literal["ok", "ready"]
    issues: list[str] | msgspec.UnsetType = msgspec.UNSET
