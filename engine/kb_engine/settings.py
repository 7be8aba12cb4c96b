"""The engine's settings: one typed object, read once; an invalid value is refused at start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, get_args

import msgspec

from kb_config import shared
from kb_config.audit import AuditSettings
from kb_config.settings import Setting, Settings, SettingsError, check_pair, expanded
from kb_contracts.access.keys import published_in
from kb_contracts.access.reach import Reach
from kb_contracts.semantics.versions import KEPT_DAYS, KEPT_VERSIONS
from kb_engine.address import Address, NotAnAddress, address_of, is_postgres, printable
from kb_engine.cores import CORES
from kb_engine.embed.registry import EmbedderSettings
from kb_engine.parts import Part, index_parts, parts, store_part
from kb_engine.ranking_settings import RankingSettings
from kb_readers.sandbox import Sandboxing

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE
_SQLITE = "sqlite:"
# All cores: these threads have a low priority, so that searches are not slowed. Each holds memory.
_WORKERS = min(8, CORES)
# One core is left for requests. Each process takes memory of its own, some 30 MiB.
_SEARCH_PROCESSES = min(4, CORES - 1)


class EngineSettings(EmbedderSettings, frozen=True, kw_only=True):
    """Settings of the engine and of its embedder. Sizes are bytes, times are seconds."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        **shared.HEADER_TIMEOUT,
        "KB_ENGINE_MAX_CONNECTIONS": "the maximum follows from the limit on open files (ulimit -n)",
        "KB_KEEP_FAILED_BYTES": "it is ten times KB_MAX_UPLOAD_BYTES; KB_KEEP_FAILED_SECONDS=0 keeps nothing",
        "KB_OCR_TIMEOUT": "OCR of a PDF is limited by KB_OCR_PAGES and to 4 hours",
    }
    home: Annotated[Path, Setting("KB_HOME", "data folder; the engine uses its subfolder `engine`")] = Path(
        "~/.local/share/kb"
    )
    host: Annotated[str, Setting("KB_ENGINE_HOST", "address to listen on")] = "127.0.0.1"
    port: Annotated[
        int, Setting("KB_ENGINE_PORT", "port to listen on; 0: any free one"), msgspec.Meta(ge=0, le=65535)
    ] = 8000
    tls_cert: Annotated[
        str,
        Setting(
            "KB_ENGINE_TLS_CERT", "certificate chain for HTTPS, in PEM, server certificate first; empty: HTTP"
        ),
    ] = ""
    tls_key: Annotated[
        str, Setting("KB_ENGINE_TLS_KEY", "private key of the certificate, in PEM, without a password")
    ] = ""
    api_key: shared.EngineKey = ""
    keys: shared.Keys = ""
    published_collections: shared.PublishedCollections = ""
    store: Annotated[
        str,
        Setting(
            "KB_STORE",
            "base: sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE; empty: SQLite in KB_HOME",
            printable=printable,
        ),
    ] = ""
    index: Annotated[str, Setting("VECTOR_DB_TYPE", "search index: qdrant; empty: the index of the base")] = (
        ""
    )
    ranking: RankingSettings = RankingSettings()
    audit: AuditSettings = AuditSettings()
    enable_metrics: shared.EnableMetrics = True
    max_upload_bytes: shared.UploadBytes = shared.DEFAULT_UPLOAD_BYTES
    extract_timeout: Annotated[
        float,
        Setting("KB_EXTRACT_TIMEOUT", "time-out for reading a file, or a page by OCR, in seconds"),
        msgspec.Meta(gt=0),
    ] = 300.0
    ocr_pages: Annotated[
        int,
        Setting("KB_OCR_PAGES", "maximum number of pages of a PDF that are read by OCR"),
        msgspec.Meta(ge=1),
    ] = 500
    extract_memory_bytes: Annotated[
        int,
        Setting(
            "KB_EXTRACT_MEMORY_BYTES",
            "total memory for reading files, in bytes; one file may use two fifths of it",
        ),
        msgspec.Meta(ge=64 * MEBIBYTE),
    ] = 5 * GIBIBYTE
    sandbox: Annotated[
        Sandboxing,
        Setting(
            "KB_SANDBOX",
            "sandbox for reading files: auto (as far as available), require (or read no files) or off",
            choices=get_args(Sandboxing),
        ),
    ] = "auto"
    max_queued_jobs: Annotated[
        int, Setting("KB_MAX_QUEUED_JOBS", "maximum number of waiting jobs"), msgspec.Meta(ge=1)
    ] = 10_000
    ingest_workers: Annotated[
        int,
        Setting(
            "KB_INGEST_WORKERS",
            "number of threads that embed files; two more files are read at the same time",
        ),
        msgspec.Meta(ge=1, le=64),
    ] = _WORKERS
    search_processes: Annotated[
        int,
        Setting(
            "KB_SEARCH_PROCESSES",
            "maximum number of processes that search a SQLite base beside the engine's own, once searches "
            "wait for each other",
        ),
        msgspec.Meta(ge=0, le=64),
    ] = _SEARCH_PROCESSES
    keep_failed_seconds: Annotated[
        float,
        Setting(
            "KB_KEEP_FAILED_SECONDS", "retention time of the input of failed jobs, for retries, in seconds"
        ),
        msgspec.Meta(ge=0),
    ] = 7 * 86_400.0
    keep_originals: Annotated[
        bool | None,
        Setting(
            "KB_KEEP_ORIGINALS",
            "keep original files, identical ones once; none: as the base was created (SQLite), or false",
        ),
    ] = None
    originals_bytes: Annotated[
        int,
        Setting(
            "KB_ORIGINALS_BYTES",
            "maximum size of kept original files, in bytes; the oldest are dropped first; 0: no maximum. A "
            "new SQLite base keeps files within it",
        ),
        msgspec.Meta(ge=0),
    ] = 0
    keep_versions: Annotated[
        int,
        Setting(
            "KB_KEEP_VERSIONS", "number of earlier versions kept per document; 0: no versions and no trash"
        ),
        msgspec.Meta(ge=0, le=1_000),
    ] = KEPT_VERSIONS
    keep_versions_days: Annotated[
        float,
        Setting("KB_KEEP_VERSIONS_DAYS", "retention time of earlier versions and removed documents, in days"),
        msgspec.Meta(gt=0, le=36_500),
    ] = KEPT_DAYS
    keep_questions: Annotated[
        bool, Setting("KB_KEEP_QUESTIONS", "keep the texts of the last 100 questions that found nothing")
    ] = False
    scan_days: Annotated[
        float,
        Setting(
            "KB_SCAN_DAYS",
            "period in which an idle engine checks every document for damage, in days; 0: no checks",
        ),
        msgspec.Meta(ge=0, le=36_500),
    ] = 7.0
    log_level: shared.LogLevel = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pair("KB_ENGINE_TLS_CERT", self.tls_cert, "KB_ENGINE_TLS_KEY", self.tls_key)
        self.parsed("published_collections", published_in)
        if self.index:
            self._check_index(index_parts())
        if self.store == _SQLITE:
            raise SettingsError(f"KB_STORE={self.store!r} names no file; write sqlite:PATH")
        if not self.store or self.store.startswith(_SQLITE):
            return
        # The value is not quoted: it may be a mistyped address with a password.
        if not (is_postgres(self.store) and store_part()):
            raise SettingsError(
                "KB_STORE: takes sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE, "
                "or nothing for a base in KB_HOME"
            )
        try:
            address_of(self.store)
        except NotAnAddress as error:
            raise SettingsError(f"KB_STORE: the address of the database {error}") from error

    def _check_index(self, indexes: Mapping[str, Part]) -> None:
        if self.index not in indexes:
            raise SettingsError(
                f"VECTOR_DB_TYPE={self.index!r} is not an index of this engine; it takes "
                f"{', '.join(indexes)}, or nothing for the index in the base. docs/adding/search-index.md "
                "says how to add one"
            )
        self.of(indexes[self.index].settings).check()

    @classmethod
    def part_kinds(cls) -> Sequence[type[Settings]]:
        return [part.settings for part in parts()]

    @property
    def keys_file(self) -> Path:
        return shared.keys_file(self.keys, self.home)

    def part_warnings(self) -> Iterator[str]:
        for part in parts():
            yield from self.of(part.settings).warnings()

    @property
    def published(self) -> Reach | None:
        """Access scope of the role `service`, or None for all collections."""
        return self.parsed("published_collections", published_in)

    @property
    def folder(self) -> Path:
        return self.home / "engine"

    @property
    def address(self) -> Address | None:
        """The PostgreSQL address, or None for a SQLite database."""
        return address_of(self.store) if is_postgres(self.store) else None

    @property
    def database(self) -> Path:
        if self.store:
            return expanded("KB_STORE", self.store.removeprefix(_SQLITE))
        return self.folder / "kb.sqlite"

    @property
    def data_folders(self) -> list[Path]:
        """The folders whose disks must have room: that of uploads and, on SQLite, that of the base."""
        return [self.folder] if self.address else [self.folder, self.database.resolve().parent]

    @property
    def scan_position(self) -> Path:
        return self.folder / "scan.json"

    @property
    def spool_folder(self) -> Path:
        """The folder of uploads whose job has not ended."""
        return self.folder / "spool"
