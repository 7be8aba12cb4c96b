"""Checks of requests: clients behind a trusted proxy, Host and Origin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from kb_config.settings import SettingsError
from kb_server.settings import ServerSettings
from mcp_aiohttp.authentication import TrustedProxies
from mcp_aiohttp.guard import OriginCheck
from mcp_aiohttp.options import HostingOptions
from mcp_aiohttp.protocol.jsonrpc import Refusal

PROXIES = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])


def status(check: Callable[[web.Request], None], asked: web.Request) -> int:
    try:
        check(asked)
    except Refusal as refusal:
        return refusal.status
    return 200


# --- proxies -------------------------------------------------------------------------------------


def forwarded_by(peer: str, *forwarded: str) -> web.Request:
    headers = CIMultiDict([("X-Forwarded-For", value) for value in forwarded])
    return make_mocked_request("POST", "/mcp", headers=headers).clone(remote=peer)


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("127.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["1.1.1.1, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["1.1.1.1", "192.0.2.1, 10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["192.0.2.1, unknown, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", [], None),
        ("10.0.0.1", ["unknown"], None),
        ("192.0.2.9", ["192.0.2.1"], None),
        ("", ["192.0.2.1"], None),
    ],
)
def test_the_last_address_that_is_no_proxys_is_the_clients(
    peer: str, forwarded: list[str], client: str | None
) -> None:
    """Earlier entries may be forged, and headers of an untrusted peer do not count."""
    assert PROXIES.client_of(forwarded_by(peer, *forwarded)) == client


def test_without_proxies_nobody_is_believed() -> None:
    assert TrustedProxies().client_of(forwarded_by("127.0.0.1", "192.0.2.1")) is None


def test_connections_of_proxies_and_of_this_machine_have_no_bound() -> None:
    assert [PROXIES.is_bounded(address) for address in ("10.1.1.1", "127.0.0.2", "192.0.2.1")] == [
        False,
        False,
        True,
    ]


def test_a_proxy_that_is_no_address_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="KB_TRUSTED_PROXIES='proxy"):
        ServerSettings.read({"KB_TRUSTED_PROXIES": "10.0.0.1, proxy.example"})


# --- Host and Origin ------------------------------------------------------------------------------


def decision(*, host: str | None = "localhost:3000", origin: str | None = None, **settings: Any) -> int:
    headers = CIMultiDict[str]()
    if host is not None:
        headers["Host"] = host
    if origin is not None:
        headers["Origin"] = origin
    return _status(make_mocked_request("POST", "/mcp", headers=headers), settings)


def _status(request: web.Request, settings: dict[str, Any]) -> int:
    return status(OriginCheck(HostingOptions(**settings)).require, request)


def test_two_origins_are_refused() -> None:
    """Even if valid: a proxy in front may have checked the other one."""
    headers = CIMultiDict(
        [("Host", "localhost"), ("Origin", "http://localhost"), ("Origin", "http://localhost")]
    )
    assert _status(make_mocked_request("POST", "/mcp", headers=headers), {}) == 403


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:3000", "LocalHost:1", "localhost.", "127.0.0.1", "127.0.0.1:80",
        "127.1.2.3", "[::1]", "[::1]:9",
    ],
)  # fmt: skip
def test_loopback_is_always_a_name_of_this_server(host: str) -> None:
    assert decision(host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:3000", "localhost.evil.example", "127.0.0.1.evil.example",
        "evil.example@localhost", "localhost:port", "localhost:99999", "[::1", "", "192.168.1.5:3000",
        "0.0.0.0",
    ],
)  # fmt: skip
def test_a_name_that_is_not_this_servers_is_misdirected(host: str) -> None:
    """421: the request of a page after DNS rebinding."""
    assert decision(host=host) == 421


def test_no_host_or_two_are_misdirected() -> None:
    """Two programs could read two different names."""
    assert decision(host=None) == 421
    two = CIMultiDict([("Host", "localhost"), ("Host", "evil.example")])
    assert _status(make_mocked_request("POST", "/mcp", headers=two), {}) == 421


def test_the_address_listened_on_is_a_name_of_this_server() -> None:
    listening = {"host": "192.168.1.5"}
    assert _status(make_mocked_request("POST", "/", headers={"Host": "192.168.1.5:3000"}), listening) == 200
    assert _status(make_mocked_request("POST", "/", headers={"Host": "192.168.1.6:3000"}), listening) == 421
    public = {"public_url": "https://kb.example.com/base"}
    assert _status(make_mocked_request("POST", "/", headers={"Host": "KB.example.com"}), public) == 200


@pytest.mark.parametrize(
    ("allowed", "host", "expected"),
    [
        ("kb.internal", "kb.internal", 200),
        ("kb.internal", "kb.internal:8080", 200),
        ("KB.Internal", "kb.internal", 200),
        ("kb.internal:8080", "kb.internal:8080", 200),
        ("kb.internal:8080", "kb.internal:9090", 421),
        ("kb.internal:8080", "kb.internal", 421),
        ("kb.internal", "other.internal", 421),
        ("[fd00::1]", "[fd00::1]:3000", 200),
        ("fd00::1", "[fd00::1]:3000", 200),
        ("[fd00::1]:3000", "[fd00::1]:3000", 200),
        ("[fd00::1]:3000", "[fd00::1]:4000", 421),
        ("*", "anything.example", 200),
    ],
)
def test_allowed_hosts_are_names_with_or_without_a_port(allowed: str, host: str, expected: int) -> None:
    assert decision(host=host, allowed_hosts=[allowed]) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example:3000", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
        ("kb-server:3000", 200),
        ("192.168.1.5:3000", 200),
        ("[fd00::1]:3000", 200),
        ("box.local", 200),
        ("kb.team.svc.cluster.local:3000", 200),
        ("kb.example.com", 200),
    ],
)
def test_on_every_address_a_page_is_not_had_by_a_strangers_name(host: str, expected: int) -> None:
    """Browsers send no Origin with a page's requests to its own host."""
    options = HostingOptions(host="0.0.0.0", public_url="https://kb.example.com")
    check = partial(OriginCheck(options).require, is_page=True)
    assert status(check, make_mocked_request("GET", "/documents", headers={"Host": host})) == expected
    allowed = OriginCheck(HostingOptions(host="0.0.0.0", allowed_hosts=["*"]))
    request = make_mocked_request("GET", "/documents", headers={"Host": host})
    assert status(partial(allowed.require, is_page=True), request) == 200


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]"])
def test_a_server_on_every_address_does_not_look_at_host_unless_told(wildcard: str) -> None:
    """A service name must work in a container; Origin still keeps browsers out."""

    def answer(host: str, origin: str | None = None, **settings: Any) -> int:
        headers = {"Host": host, **({"Origin": origin} if origin else {})}
        return _status(make_mocked_request("POST", "/mcp", headers=headers), {"host": wildcard, **settings})

    assert answer("kb-server:3000") == 200
    assert answer("evil.example:3000", "http://evil.example:3000") == 403
    assert answer("kb-server:3000", allowed_hosts=["kb-server"]) == 200
    assert answer("evil.example", allowed_hosts=["kb-server"]) == 421


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        (None, [], 200),
        ("http://localhost:6274", [], 200),
        ("https://127.0.0.1", [], 200),
        ("http://[::1]:5", [], 200),
        ("http://evil.example", [], 403),
        ("null", [], 403),
        ("", [], 403),
        ("file://", [], 403),
        ("http://localhost.evil.example", [], 403),
        ("ftp://localhost", [], 403),
        ("http://[::1", [], 403),
        ("https://app.example", ["https://app.example"], 200),
        ("https://App.example", ["https://app.example/"], 200),
        ("http://app.example", ["https://app.example"], 403),
        ("https://app.example:8443", ["https://app.example"], 403),
        ("null", ["*"], 200),
    ],
)
def test_an_origin_is_loopback_or_allowed(origin: str | None, allowed: list[str], expected: int) -> None:
    """403 otherwise; a request without Origin is not from a browser."""
    assert decision(origin=origin, allowed_origins=allowed) == expected


@given(host=st.text(max_size=30), origin=st.none() | st.text(max_size=30))
def test_any_headers_pass_or_are_refused(host: str, origin: str | None) -> None:
    assert decision(host=host, origin=origin) in (200, 403, 421)
