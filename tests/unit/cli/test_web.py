"""Pages and files from the web: fetched content, file names, and refused addresses."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from kb_cli import web
from kb_cli.web import Address, NotFetched, addresses_of, fetch, is_of_the_internet, reduce_to_main_text
from kb_readers.html import markdown_of
from tests.support.certificates import self_signed
from tests.support.patience import ANSWER_SECONDS, SILENCE

HERE, OTHER = ip_address("127.0.0.1"), ip_address("127.0.0.2")
PAGE = b"<h1>Stones</h1>"

ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "/stones": (200, {"Content-Type": "text/html; charset=utf-8"}, PAGE),
    "/a%20b/guide.pdf": (200, {"Content-Type": "application/octet-stream"}, b"%PDF-1.4"),
    "/notes.md": (200, {"Content-Type": "text/plain"}, b"# Stones"),
    "/letter": (200, {"Content-Type": "text/plain"}, b"stones"),
    "/data.php?x=1": (200, {"Content-Type": "application/json"}, b"{}"),
    "/latin": (200, {"Content-Type": "text/html; charset=iso-8859-1"}, "Größe".encode("latin-1")),
    "/wrong": (200, {"Content-Type": "text/html; charset=nonsense"}, b"a"),
    "/zip": (200, {"Content-Type": "application/zip"}, b"PK"),
    "/nothing": (404, {"Content-Type": "text/html"}, b"no"),
    "/packed": (
        200,
        {"Content-Type": "text/html", "Content-Encoding": "gzip"},
        gzip.compress(b"a" * 3_000_000),
    ),
    "/short": (200, {"Content-Type": "text/html", "Content-Length": "100"}, b"a"),
    "/moved": (302, {"Location": "/stones#top"}, b""),
    "/loop": (302, {"Location": "/loop"}, b""),
    "/inside": (302, {"Location": "http://127.0.0.2:9/secret"}, b""),
    "/file": (302, {"Location": "file:///etc/passwd"}, b""),
    "/odd": (302, {"Location": "http://[::1"}, b""),
    "/script": (302, {"Location": "javascript:alert(1)"}, b""),
    "/xn": (302, {"Location": "http://xn--/"}, b""),
    "/mail": (302, {"Location": "mailto:a@b.example"}, b""),
    "/login": (302, {"Location": "http://a:b@example.test/"}, b""),
}


class Site(BaseHTTPRequestHandler):
    hosts: list[str]

    def do_GET(self) -> None:
        self.hosts.append(self.headers["Host"])
        status, headers, body = ANSWERS[self.path]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def site() -> Iterator[str]:
    Site.hosts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://site.example:{server.server_port}"
        server.shutdown()


def known(asked: list[str], host: str, _port: int) -> Sequence[Address]:
    asked.append(host)
    if host == "site.example":
        return [HERE]
    try:
        return [ip_address(host)]
    except ValueError:
        raise NotFetched(f"{host} is not known") from None


Fetch = Callable[[str], Path]


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def get(tmp_path: Path, asked: list[str]) -> Fetch:
    """A fetch that resolves the site's name, and treats this machine's address as one of the internet."""
    return lambda url: (
        fetch(url, tmp_path, is_allowed=lambda address: address == HERE, resolve=partial(known, asked)).path
    )


@pytest.mark.parametrize(
    ("path", "name", "content"),
    [
        ("/stones", "stones.html", PAGE),
        ("/a%20b/guide.pdf", "guide.pdf", b"%PDF-1.4"),
        ("/notes.md", "notes.md", b"# Stones"),
        ("/letter", "letter.txt", b"stones"),
        ("/data.php?x=1", "data.php.json", b"{}"),
        ("/latin", "latin.html", "Größe".encode("utf-8-sig")),
        ("/moved", "stones.html", PAGE),
    ],
)
def test_a_fetched_page_is_a_file_named_by_its_content_type(
    get: Fetch, site: str, path: str, name: str, content: bytes
) -> None:
    found = get(site + path)
    assert (found.name, found.read_bytes()) == (name, content)


def test_a_name_is_looked_up_once_and_the_connection_goes_there(
    get: Fetch, site: str, asked: list[str]
) -> None:
    """DNS rebinding has no effect: the name is resolved once."""
    get(f"{site}/stones")
    assert asked == ["site.example"]
    assert Site.hosts == [site.removeprefix("http://")]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/inside", "127.0.0.2 is not a public address; --private allows"),
        ("/file", "no http:// or https:// URL"),
        ("/odd", "no usable response"),
        ("/script", "no usable response"),
        ("/xn", "no usable response"),
        ("/mail", "no usable response"),
        ("/login", "a password"),
        ("/loop", "redirects more than 5 times"),
        ("/nothing", "site.example answers 404"),
        ("/zip", "of the type application/zip"),
        ("/wrong", "not valid nonsense, the encoding in its header"),
        ("/packed", "more than 1 MiB"),
        ("/short", "broke off"),
    ],
)
def test_a_failed_fetch_names_the_reason(
    get: Fetch, site: str, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "MOST_BYTES", 1 << 20)
    with pytest.raises(NotFetched, match=words):
        get(site + path)


@pytest.mark.parametrize(
    "url",
    ["http://", "http://a:0/", "http://user:word@site.example/", "http://[", "http://a b/", "http://xn--/"],
)
def test_an_invalid_url_is_refused(get: Fetch, url: str) -> None:
    with pytest.raises(NotFetched):
        get(url)


def test_the_certificate_is_that_of_the_name_and_not_of_the_address(tmp_path: Path) -> None:
    (tmp_path / "pem").write_bytes(self_signed("site.example"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "pem")
    trust = ssl.create_default_context(cafile=str(tmp_path / "pem"))
    Site.hosts = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.socket = serving.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        get = partial(
            fetch,
            folder=tmp_path,
            is_allowed=lambda _: True,
            resolve=lambda _host, _port: [HERE],
            trust=trust,
        )
        assert get(f"https://site.example:{server.server_port}/stones").path.read_bytes() == PAGE
        with pytest.raises(NotFetched, match="not reached"):
            get(f"https://other.example:{server.server_port}/stones")
        server.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::", "192.0.2.1", "2001:db8::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fec0::1", "64:ff9b:1::7f00:1", "64:ff9b:1::101:101",
        "::127.0.0.1", "::1.1.1.1", "::ffff:0:127.0.0.1", "::ffff:0:1.1.1.1", "192.88.99.1", "192.0.0.9",
        "192.0.0.170", "198.18.0.1", "203.0.113.5", "240.0.0.1", "100::1", "100:0:0:1::1", "2001:2::1",
        "2001:10::1", "3fff::1", "5f00::1", "4000::1", "2002:c058:6301::1",
    ],
)  # fmt: skip
def test_addresses_inside_are_not_of_the_internet(address: str) -> None:
    assert not is_of_the_internet(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "64:ff9b::101:101"])
def test_addresses_outside_are(address: str) -> None:
    assert is_of_the_internet(ip_address(address))


def test_a_host_that_never_sends_the_head_of_its_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "MOST_SECONDS", SILENCE)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(NotFetched, match="takes more than"):
            fetch(url, tmp_path, is_allowed=lambda _: True)


def test_the_next_address_is_tried_after_one_that_refuses(tmp_path: Path, site: str) -> None:
    get = partial(fetch, f"{site}/stones", tmp_path, is_allowed=lambda _: True)
    assert get(resolve=lambda _host, _port: [OTHER, HERE]).path.read_bytes() == PAGE
    with pytest.raises(NotFetched, match=r"site\.example is not reached: \w"):
        get(resolve=lambda _host, _port: [OTHER])


@contextmanager
def silent_and_next() -> Iterator[tuple[int, socket.socket]]:
    """Yield a port, without an answer at `OTHER`, and its listener at `HERE`.

    A listener whose queue is full does not answer: it takes one connection, and one more.
    """
    with (
        socket.create_server((str(HERE), 0)) as following,
        socket.socket() as silent,
    ):
        port = following.getsockname()[1]
        following.settimeout(ANSWER_SECONDS)
        silent.bind((str(OTHER), port))
        silent.listen(0)
        with socket.create_connection((str(OTHER), port), ANSWER_SECONDS):
            yield port, following


def test_the_next_address_is_tried_after_one_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_TIMEOUT", httpx.Timeout(SILENCE))
    with silent_and_next() as (port, following):
        url, addresses = f"http://site.example:{port}/", [OTHER, HERE]
        with pytest.raises(NotFetched):
            fetch(url, tmp_path, is_allowed=lambda _: True, resolve=lambda _host, _port: addresses)
        following.accept()[0].close()


def test_loopback_goes_by_many_names_and_by_none(tmp_path: Path) -> None:
    """Numbers in any base, forms without dots, and names from this machine's resolver."""
    for host in ("localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]"):
        with pytest.raises(NotFetched):
            fetch(f"http://{host}:9/", tmp_path)
    assert HERE in addresses_of("localhost", 80)


def test_a_name_that_leads_outside_and_inside_is_refused(tmp_path: Path) -> None:
    both = [ip_address("93.184.216.34"), HERE]
    with pytest.raises(NotFetched, match="not a public address"):
        fetch("http://both.example/", tmp_path, resolve=lambda _host, _port: both)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/..%2f..%2fetc%2fpasswd", "passwd.html"),
        ("/" + "x" * 400, "x" * 150 + ".html"),
        ("/.%00.", "site.example.html"),
        ("/", "site.example.html"),
    ],
)
def test_a_name_stays_in_its_folder(
    get: Fetch, site: str, tmp_path: Path, path: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, path, (200, {"Content-Type": "text/html"}, PAGE))
    found = get(site + path)
    assert found.parent == tmp_path
    assert found.name == name


def test_a_fetched_page_is_reduced_to_its_main_text(tmp_path: Path) -> None:
    page = tmp_path / "stones.html"
    prose = "Größe und Alter der Steine im alten Bruch sind seit langem gut bekannt. " * 4
    html = f"<meta charset=iso-8859-1><nav><a href=/>Start</a></nav><p>{prose}</p>"
    page.write_bytes(html.encode("latin-1"))
    remark = reduce_to_main_text(page)
    assert remark is not None
    assert remark.startswith("1 of 53 words")
    assert markdown_of(page.read_text("utf-8-sig")) == prose.strip()
    assert reduce_to_main_text(page) is None
