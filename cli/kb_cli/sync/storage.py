"""Two sources: the files of an S3 bucket (s3fs, extra `s3`) and of a WebDAV folder (webdav4, extra `webdav`).

Credentials come from a file alone: neither the environment nor the machine's metadata service is used. The
address rules of `kb add URL` apply to the endpoint of S3, and to each connection of WebDAV, which goes to a
checked address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from kb_cli import web
from kb_cli.output import CliError, UsageError
from kb_cli.sync.source import Entry, Remote, Unavailable
from kb_config.installing import install_command

MOST_FOLDERS = 100_000
"""Maximum number of folders of a WebDAV listing."""
MOST_LISTED = 16 << 20
"""Maximum size of the listing of a WebDAV folder, in bytes; parsed it takes about 25 times as much memory."""

_KEYS = 1_000
"""Number of objects on a page of a bucket's listing."""
_BLOCK = 8 << 20
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class Bucket(Remote):
    """The files under `s3://bucket/prefix`. Raises `CliError` if the extra is not installed."""

    def __init__(self, place: str, home: Path, *, private: bool, credentials: Mapping[str, str]) -> None:
        self._endpoint = credentials.get("endpoint_url", "")
        super().__init__(place, f"{place}/", home, self._endpoint)
        self._is_allowed = web.address_rule(private=private)
        self._files = _s3(credentials)

    def entries(self) -> Iterator[Entry]:
        """Yield all files."""
        bucket, _, prefix = self.prefix.removeprefix("s3://").partition("/")
        rest: dict[str, str] = {}
        try:
            if self._endpoint:
                endpoint = web.parsed(self._endpoint)
                web.allowed_addresses(endpoint.host, endpoint.port or 443, self._is_allowed)
            while True:
                page = self._files.call_s3(
                    "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=_KEYS, **rest
                )
                for row in page.get("Contents", ()):
                    if not row["Key"].endswith("/"):  # an empty object that stands for a folder
                        key = row["Key"].removeprefix(prefix)
                        yield Entry(self.prefix + key, row["Size"], row.get("ETag", ""))
                if not page["IsTruncated"]:
                    return
                rest = {"ContinuationToken": page["NextContinuationToken"]}
        except Exception as error:
            raise _unavailable(error) from error

    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> web.Fetched:  # noqa: ARG002
        """Return a file."""
        try:
            with self._files.open(source, "rb", cache_type="none") as content:
                return _saved(iter(partial(content.read, _BLOCK), b""), source, folder)
        except Exception as error:
            raise _unavailable(error) from error


class SharedFolder(Remote):
    """The files under `webdav://host/folder` or `webdavs://host/folder`. Raises `CliError`, as `Bucket`."""

    def __init__(self, place: str, home: Path, *, private: bool, credentials: Mapping[str, str]) -> None:
        super().__init__(place, f"{place}/", home)
        parts = urlsplit(place)
        url = parts._replace(scheme="https" if parts.scheme == "webdavs" else "http").geturl()
        self._url = str(web.parsed(url))
        user = credentials.get("user")
        self._http, self._files = _webdav(
            self._url,
            auth=(user, credentials.get("password", "")) if user else None,
            transport=_Pinned(web.address_rule(private=private)),
            timeout=_TIMEOUT,
            trust_env=False,
            headers={"Accept-Encoding": "identity"},
        )

    def entries(self) -> Iterator[Entry]:
        """Yield the files of all folders. A folder that fails or is listed in part ends the listing."""
        base = httpx.URL(self._url).path.rstrip("/")
        folders = [base]
        for folder in folders:
            try:
                relative = quote(folder.removeprefix(base))
                found = self._files.propfind(relative, headers={"Depth": "1"}, follow_redirects=True)
                found.raise_for_status()
            except Exception as error:
                raise _unavailable(error) from error
            rows = dict(found.responses)
            here = rows.pop(folder or "/", None)
            if here is None or here.properties.resource_type != "directory":
                raise Unavailable(f"the server does not list {folder or '/'} as a folder")
            for path, row in rows.items():
                of = row.properties
                if of.resource_type is None or path.rpartition("/")[0] != folder:
                    raise Unavailable(f"the server lists {path}, of unknown type, in {folder or '/'}")
                if of.resource_type == "directory":
                    folders.append(path)
                else:
                    mark = of.etag or str(of.modified or "")
                    yield Entry(self.prefix + path.removeprefix(f"{base}/"), of.content_length or 0, mark)
            if len(folders) > MOST_FOLDERS:
                raise Unavailable(f"it has more than {MOST_FOLDERS:,} folders")

    def fetched(self, source: str, folder: Path, conditions: Mapping[str, str]) -> web.Fetched:  # noqa: ARG002
        """Return a file."""
        try:
            with self._http.stream(
                "GET", f"{self._url}/{quote(source.removeprefix(self.prefix))}"
            ) as response:
                response.raise_for_status()
                return _saved(response.iter_bytes(), source, folder)
        except Exception as error:
            raise _unavailable(error) from error


def _saved(blocks: Iterator[bytes], source: str, folder: Path) -> web.Fetched:
    path = folder / PurePosixPath(source).name
    size = 0
    with path.open("wb") as file:
        for block in blocks:
            size += len(block)
            if size > web.MOST_BYTES:
                raise Unavailable(f"it has more than {web.MOST_BYTES >> 20} MiB")
            file.write(block)
    return web.Fetched(path, {})


def storage(place: str, home: Path, *, private: bool, credentials: Mapping[str, str]) -> Remote:
    """Return the source of an address. Raises CliError: it is invalid, or its extra is not installed."""
    place = place.rstrip("/")
    parts = urlsplit(place)
    if not parts.hostname or parts.query or parts.fragment:
        raise UsageError(f"{place}: an address is s3://BUCKET/PREFIX or webdavs://HOST/FOLDER")
    kind, extra = (Bucket, "s3") if parts.scheme == "s3" else (SharedFolder, "webdav")
    try:
        return kind(place, home, private=private, credentials=credentials)
    except web.NotFetched as error:
        raise UsageError(f"{place}: {error}") from error
    except ModuleNotFoundError as error:
        command = install_command(extra)
        raise CliError(f"{place} needs packages; install them with: {command}") from error


def _unavailable(error: Exception) -> Unavailable:
    """Return the failure of a library, whose exceptions have no common class."""
    if isinstance(error, Unavailable):
        return error
    return Unavailable(" ".join(str(error).split())[:500] or type(error).__name__)


def _s3(credentials: Mapping[str, str]) -> Any:
    import s3fs

    region = {"region_name": credentials["region"]} if "region" in credentials else {}
    return s3fs.S3FileSystem(
        anon="key" not in credentials,
        key=credentials.get("key"),
        secret=credentials.get("secret"),
        token=credentials.get("token"),
        endpoint_url=credentials.get("endpoint_url"),
        client_kwargs=region,
        config_kwargs={"ignore_configured_endpoint_urls": True, "proxies": {}},
        use_listings_cache=False,
        skip_instance_cache=True,
    )


def _webdav(url: str, **options: Any) -> tuple[httpx.Client, Any]:
    from webdav4.client import Client
    from webdav4.http import Client as Http

    http = Http(**options)
    return http, Client(url, http_client=http, retry=False)


class _Pinned(httpx.HTTPTransport):
    """Connects to the checked addresses of each host in turn, also after a redirect."""

    def __init__(self, is_allowed: Callable[[web.Address], bool]) -> None:
        super().__init__(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._is_allowed = is_allowed

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request. Raises `NotFetched` if an address of the host is not allowed."""
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        request.extensions["sni_hostname"] = url.raw_host.decode("ascii")
        failure: httpx.TransportError = httpx.ConnectError(f"{url.host} has no address")
        for address in web.allowed_addresses(url.host, port, self._is_allowed):
            request.url = url.copy_with(host=str(address))  # the header Host stays
            try:
                response = super().handle_request(request)
                break
            except web.NOT_REACHED as error:
                failure = error
            finally:
                request.url = url
        else:
            raise failure
        if "Content-Encoding" in response.headers:
            response.close()
            raise web.NotFetched(f"{url.host} sends a compressed response, which was not requested")
        assert isinstance(response.stream, httpx.SyncByteStream)
        most = MOST_LISTED if request.method == "PROPFIND" else web.MOST_BYTES
        response.stream = _Bounded(response.stream, most)
        return response


class _Bounded(httpx.SyncByteStream):
    """A response within the limits on size and time."""

    def __init__(self, stream: httpx.SyncByteStream, most: int) -> None:
        self._stream, self._most = stream, most

    def __iter__(self) -> Iterator[bytes]:
        size, ends = 0, monotonic() + web.MOST_SECONDS
        for block in self._stream:
            size += len(block)
            if size > self._most or monotonic() > ends:
                raise web.NotFetched(
                    f"it has more than {self._most >> 20} MiB or takes {web.MOST_SECONDS:g} seconds"
                )
            yield block

    def close(self) -> None:
        self._stream.close()
