"""A collection synchronized with a bucket (moto) and a WebDAV folder, against a real engine."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from kb_cli.output import Exit
from kb_cli.sync import storage
from tests.support.patience import SILENCE
from tests.unit.cli.conftest import Kb
from tests.unit.cli.test_sync_sources import held, outcomes
from tests.unit.cli.test_web import HERE, OTHER, silent_and_next

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KB_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that a server of WebDAV shares."""
    root = tmp_path / "shared"
    (root / "docs" / "below").mkdir(parents=True)
    return root


class Dav(SimpleHTTPRequestHandler):
    """PROPFIND with depth 1 and GET, as in RFC 4918, for one user.

    No server of WebDAV: the package json5 of wsgidav has the module that json-five has.
    """

    def do_GET(self) -> None:
        if self._is_known():
            super().do_GET()

    def do_PROPFIND(self) -> None:
        if not self._is_known():
            return
        place = Path(self.translate_path(self.path))
        rows = "".join(self._row(each) for each in (place, *place.iterdir()))
        self.send_response(207)
        self.end_headers()
        self.wfile.write(f'<d:multistatus xmlns:d="DAV:">{rows}</d:multistatus>'.encode())

    def _is_known(self) -> bool:
        is_known = self.headers["Authorization"] == f"Basic {base64.b64encode(b'me:secret').decode()}"
        if not is_known:
            self.send_error(401)
        return is_known

    def _row(self, path: Path) -> str:
        href = f"/{quote(str(path.relative_to(self.directory)))}"
        kind = "<d:collection/>" if path.is_dir() else ""
        status = path.stat()
        return (
            f"<d:response><d:href>{href}</d:href><d:propstat><d:prop><d:resourcetype>{kind}</d:resourcetype>"
            f"<d:getcontentlength>{status.st_size}</d:getcontentlength><d:getetag>{status.st_mtime_ns}"
            "</d:getetag></d:prop><d:status>HTTP/1.1 200 OK</d:status></d:propstat></d:response>"
        )

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def webdav(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Dav, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"webdav://127.0.0.1:{server.server_port}/docs"
        server.shutdown()


def test_the_files_of_a_webdav_folder_are_followed(kb: Kb, tmp_path: Path, folder: Path, webdav: str) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"user": "me", "password": "secret"}')
    arguments = ("sync", webdav, "--private", "--collection", "dav")

    def sync() -> dict[str, list[str]]:
        return outcomes(kb.json(*arguments, "--credentials", str(secret)))

    (folder / "docs" / "a.md").write_text("granite quarry")
    (folder / "docs" / "below" / "b c#?.md").write_text("basalt columns")
    (folder / "outside.md").write_text("slate roofs")
    assert sync() == {"added": ["a.md", "b c#?.md"]}
    assert sync() == {}
    (folder / "docs" / "a.md").write_text("marble quarries")
    (folder / "docs" / "below" / "b c#?.md").unlink()
    assert sync() == {"replaced": ["a.md"], "removed": ["b c#?.md"]}
    for more in ((), ("--credentials", str(secret))):
        secret.write_text('{"user": "me", "password": "wrong"}')
        status, out, _ = kb(*arguments, *more)
        assert (status, "nothing is removed" in out, "wrong" in out) == (Exit.FAILED, True, False)
    out = kb("sync", webdav, "--collection", "dav")[1]
    assert "127.0.0.1 is not a public address" in out
    assert set(held(kb, "dav")) == {"a.md"}
    assert not any(b"secret" in file.read_bytes() for file in (tmp_path / "home").rglob("*.jsonl"))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names that this machine resolves, with their addresses."""
    found: dict[str, list[str]] = {}
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        return [row for each in found.get(host, [host]) for row in resolve(each, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return found


def test_all_addresses_of_a_webdav_server_are_tried_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, webdav: str, names: dict[str, list[str]]
) -> None:
    """A name with an address that is not allowed is refused, wherever that stands."""
    (folder / "docs" / "a.md").write_text("granite quarry")
    allowed = [HERE]
    monkeypatch.setattr("kb_cli.web.is_of_the_internet", allowed.__contains__)
    names["two.example"] = [str(OTHER), str(HERE)]
    place, secret = webdav.replace(str(HERE), "two.example"), {"user": "me", "password": "secret"}
    source = storage.storage(place, tmp_path / "state", private=False, credentials=secret)
    for order in (1, -1):
        names["two.example"] = names["two.example"][::order]
        assert f"two.example ({OTHER}) is not a public address" in source.listed().unreadable[place]
    allowed.append(OTHER)
    names["two.example"] = [str(OTHER), str(HERE)]
    assert [entry.source for entry in source.entries()] == [f"{place}/a.md"]
    assert source.fetched(f"{place}/a.md", tmp_path, {}).path.read_text() == "granite quarry"
    names["two.example"] = [str(OTHER)]
    assert not source.listed().is_complete


def test_the_next_address_of_a_webdav_server_is_tried_after_one_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, list[str]]
) -> None:
    monkeypatch.setattr(storage, "_TIMEOUT", httpx.Timeout(SILENCE))
    names["two.example"] = [str(OTHER), str(HERE)]
    with silent_and_next() as (port, following):
        place = f"webdav://two.example:{port}/docs"
        source = storage.storage(place, tmp_path / "state", private=True, credentials={})
        assert not source.listed().is_complete
        following.accept()[0].close()


FOLDER = "<d:propstat><d:prop><d:resourcetype><d:collection/></d:resourcetype></d:prop></d:propstat>"
LISTINGS = {
    "/none": {},
    "/file": {"/file": "<d:propstat><d:prop><d:resourcetype/></d:prop></d:propstat>"},
    "/forbidden": {"/forbidden": FOLDER, "/forbidden/a": "<d:status>HTTP/1.1 403 Forbidden</d:status>"},
    "/untyped": {"/untyped": FOLDER, "/untyped/a": ""},
    "/other": {"/other": FOLDER, "/others/a": FOLDER},
}
"""Properties by address, of folders that are not listed in full."""


class Hostile(BaseHTTPRequestHandler):
    """Answers in part or without end, or leads to another machine."""

    def do_PROPFIND(self) -> None:
        self.send_response(302 if "away" in self.path else 207)
        self.send_header("Location", "http://169.254.169.254/latest/")
        self.end_headers()
        if (listing := LISTINGS.get(self.path)) is not None:
            rows = [f"<d:response><d:href>{at}</d:href>{of}</d:response>" for at, of in listing.items()]
            self.wfile.write(f'<d:multistatus xmlns:d="DAV:">{"".join(rows)}</d:multistatus>'.encode())
            return
        with suppress(OSError):
            while "away" not in self.path:
                self.wfile.write(b"<a/>" * 1_000)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("endless", "it has more than"),
        ("away", "169.254.169.254 is not"),
        ("none", "does not list /none as a folder"),
        ("file", "does not list /file as a folder"),
        ("forbidden", "/forbidden/a is forbidden"),
        ("untyped", "lists /untyped/a, of unknown type"),
        ("other", "lists /others/a, of unknown type, in /other"),
    ],
)
def test_a_webdav_server_that_does_not_list_a_folder_in_full_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, reason: str
) -> None:
    monkeypatch.setattr(storage, "MOST_LISTED", 1 << 20)
    monkeypatch.setattr("kb_cli.web.is_of_the_internet", lambda address: address.is_loopback)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        place = f"webdav://127.0.0.1:{server.server_port}/{path}"
        listing = storage.storage(place, tmp_path / "state", private=False, credentials={}).listed()
        server.shutdown()
    assert not listing.is_complete
    assert reason in listing.unreadable[place]


@pytest.fixture
def s3() -> Iterator[str]:
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_the_objects_of_a_bucket_are_followed(
    kb: Kb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: str
) -> None:
    """An object that stands for a folder is no file; a bucket that is away removes nothing."""
    import boto3

    monkeypatch.setattr(storage, "_KEYS", 1)
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"key": "a", "secret": "b", "region": "us-east-1", "endpoint_url": s3}))
    client = boto3.client(
        "s3", aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1", endpoint_url=s3
    )
    client.create_bucket(Bucket="stones")
    keys = {
        "docs/a.md": "granite quarry",
        "docs/b/c.md": "basalt columns",
        "docs/": "",
        "other/d.md": "slate",
    }
    for key, text in keys.items():
        client.put_object(Bucket="stones", Key=key, Body=text.encode())
    arguments = ("sync", "s3://stones/docs/", "--collection", "bucket", "--credentials", str(secret))

    def sync() -> dict[str, list[str]]:
        return outcomes(json.loads(kb(*arguments, "--private", "--json")[1]))

    assert sync() == {"added": ["a.md", "c.md"]}
    assert sync() == {}
    client.put_object(Bucket="stones", Key="docs/a.md", Body=b"marble quarry")
    client.delete_object(Bucket="stones", Key="docs/b/c.md")
    assert sync() == {"replaced": ["a.md"], "removed": ["c.md"]}
    assert "127.0.0.1 is not a public address" in kb(*arguments)[1]
    secret.write_text(json.dumps({"endpoint_url": s3, "key": "a", "secret": "b"}))
    for key in client.list_objects_v2(Bucket="stones")["Contents"]:
        client.delete_object(Bucket="stones", Key=key["Key"])
    client.delete_bucket(Bucket="stones")
    client.close()
    assert sync() == {"failed": ["docs"]}
    assert set(held(kb, "bucket")) == {"a.md"}


def test_the_environment_does_not_change_the_endpoint_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    bucket = storage.Bucket("s3://stones", tmp_path, private=False, credentials={"region": "us-east-1"})
    assert "127.0.0.1" not in bucket._files.connect().meta.endpoint_url
