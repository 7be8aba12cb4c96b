"""Models of a hub in a folder of this machine: downloaded once, checked, and used without a network.

    KB_MODELS/<owner>--<name>/    the files of the model, laid out as in its repository
        kb-model.json             repository, revision, licence, and the SHA-256 of each file

The revision is fixed when the download begins, so that an interrupted one goes on with the same files, and
a model changes only on request: by removing its folder. Files put there by hand are recorded as they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from kb_engine.disk import sha256_of
from kb_engine.start_errors import StartError

if TYPE_CHECKING:
    import httpx

_RECORD = "kb-model.json"
_LOCK = "kb-model.lock"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_OPTIONAL = ("config.json", "special_tokens_map.json", "sentence_bert_config.json")
_HUB = "https://huggingface.co"
_SILENCE_SECONDS = 60.0
_BLOCK_BYTES = 1024 * 1024
_MEGABYTE = 1_000_000

logger = logging.getLogger(__name__)


class ModelUnavailable(StartError):
    """A model is neither on this machine nor can it be downloaded."""


class HubModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a repository of a hub. `files` are its weights; the tokenizer's files come with them."""

    name: str
    repository: str
    files: tuple[str, ...]
    licence: str


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a model's files; `sha256` is empty until all of them are there."""

    repository: str
    revision: str
    licence: str
    sha256: dict[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with any byte of any file."""
        lines = "".join(f"{self.sha256[name]}  {name}\n" for name in sorted(self.sha256))
        return hashlib.sha256(lines.encode()).hexdigest()[:12]


class ModelFolder:
    """The files of one model. The first use downloads them, which blocks.
    Raises ModelUnavailable: they are missing and cannot be downloaded.
    """

    def __init__(self, model: HubModel, models: Path, *, endpoint: str | None = None) -> None:
        self.path = models.expanduser() / model.name.replace("/", "--")
        self._model = model
        self._needed = (*model.files, *_TOKENIZER)
        record = self._recorded()
        if record is None and all((self.path / name).is_file() for name in self._needed):
            record = self._record(ModelRecord(repository="", revision="", licence=model.licence))
        self.record = record if self._is_complete(record) else self._downloaded(endpoint)

    def check(self) -> None:
        """Compare the files with their record. Raises ModelUnavailable."""
        for name, expected in self.record.sha256.items():
            path = self.path / name
            if not path.is_file() or sha256_of(path) != expected:
                raise ModelUnavailable(
                    f"{path} is missing or has changed since it was recorded in {_RECORD}: remove the folder "
                    f"{self.path} to have the model downloaded again"
                )

    def _recorded(self) -> ModelRecord | None:
        try:
            return msgspec.json.decode((self.path / _RECORD).read_bytes(), type=ModelRecord)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ModelUnavailable(f"{self.path / _RECORD}: {error}; remove the folder") from error

    def _record(self, record: ModelRecord) -> ModelRecord:
        """Store `record` with the digests of all files present."""
        there = [name for name in (*self._needed, *_OPTIONAL) if (self.path / name).is_file()]
        complete = msgspec.structs.replace(
            record, sha256={name: sha256_of(self.path / name) for name in there}
        )
        self._store(complete)
        return complete

    def _store(self, record: ModelRecord) -> None:
        partial = self.path / f"{_RECORD}.partial"
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        partial.replace(self.path / _RECORD)

    def _downloaded(self, endpoint: str | None) -> ModelRecord:
        """Download the model, unless another process does so meanwhile."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / _LOCK).open("w")
        except OSError as error:
            raise ModelUnavailable(f"the folder of the model {self._model.name}: {error}") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            record = self._recorded()
            return record if self._is_complete(record) else self._download(record, endpoint)

    def _is_complete(self, record: ModelRecord | None) -> TypeGuard[ModelRecord]:
        return record is not None and set(self._needed) <= record.sha256.keys()

    def _download(self, begun: ModelRecord | None, endpoint: str | None) -> ModelRecord:
        import httpx  # late: it imports rich, which commands do without

        model = self._model
        revision = (begun.revision if begun else "") or "main"  # files put there by hand have none
        try:
            with _hub(endpoint) as hub:
                answer = hub.get(
                    f"/api/models/{model.repository}/revision/{revision}", params={"blobs": "true"}
                )
                info = msgspec.json.decode(answer.raise_for_status().content, type=_Repository)
                wanted = {*self._needed, *_OPTIONAL}
                files = {each.rfilename: each for each in info.siblings if each.rfilename in wanted}
                if lacking := sorted({*self._needed} - files.keys()):
                    raise ModelUnavailable(f"the repository {model.repository} has no {', '.join(lacking)}")
                record = ModelRecord(repository=model.repository, revision=info.sha, licence=model.licence)
                megabytes = round(sum(each.size or 0 for each in files.values()) / _MEGABYTE, 1)
                members = {"model": model.name, "megabytes": megabytes, "folder": str(self.path)}
                origin = {name: getattr(record, name) for name in ("licence", "repository", "revision")}
                logger.info("downloading a model", extra=members | origin)
                self._store(record)
                for name, each in sorted(files.items()):
                    _fetch(hub, f"/{model.repository}/resolve/{info.sha}/{name}", self.path / name, each.size)
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelUnavailable(
                f"the model {model.name} ({model.licence}) is not in {self.path}, and the download from "
                f"{model.repository} failed: {error}. The next start resumes it; or put the files there"
            ) from error
        complete = self._recorded_files(record, {name: each.lfs for name, each in files.items()})
        logger.info("model downloaded", extra={"model": model.name, "fingerprint": complete.fingerprint})
        return complete

    def _recorded_files(self, record: ModelRecord, announced: Mapping[str, _Lfs | None]) -> ModelRecord:
        """Record the files of a download. Raises ModelUnavailable: a file is not the announced one."""
        for name, lfs in announced.items():
            if lfs is not None and lfs.sha256 != sha256_of(self.path / name):
                (self.path / name).unlink()
                raise ModelUnavailable(
                    f"{self.path / name} was not the file that the hub announced: start again"
                )
        return self._record(record)


class _Lfs(msgspec.Struct):
    sha256: str


class _File(msgspec.Struct):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _Repository(msgspec.Struct):
    sha: str
    siblings: list[_File]


def _hub(endpoint: str | None) -> httpx.Client:
    """A client of the hub, or of the mirror in `HF_ENDPOINT`, with the access token in `HF_TOKEN`."""
    import httpx

    headers = {"Accept-Encoding": "identity"}
    if token := os.environ.get("HF_TOKEN", ""):
        headers["Authorization"] = f"Bearer {token}"
    url = endpoint or os.environ.get("HF_ENDPOINT", "") or _HUB
    return httpx.Client(base_url=url, headers=headers, timeout=_SILENCE_SECONDS, follow_redirects=True)


def _fetch(hub: httpx.Client, url: str, path: Path, size: int | None) -> None:
    """Download a file, from where an interrupted download of it ended. Raises httpx.HTTPError or OSError."""
    import httpx

    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    there = partial.stat().st_size if partial.is_file() else 0
    if there and (size is None or there > size):  # no range of the file begins there
        there = 0
    if not there or there != size:
        with hub.stream("GET", url, headers={"Range": f"bytes={there}-"} if there else {}) as response:
            response.raise_for_status()
            with partial.open("ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as file:
                for block in response.iter_bytes(_BLOCK_BYTES):
                    file.write(block)
    if size is not None and (found := partial.stat().st_size) != size:
        partial.unlink()
        raise OSError(f"{path.name} has {found} bytes, not {size}")
    partial.replace(path)
