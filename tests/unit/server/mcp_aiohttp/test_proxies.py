"""Whom a trusted proxy asks for."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from kb_config.settings import SettingsError
from kb_server.settings import ServerSettings
from mcp_aiohttp.guard import TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "127.0.0.1", "fd00::/8"])


def request(peer: str, *forwarded: str) -> web.Request:
    """A request from `peer` with these headers."""
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
    """What stands before it anybody may have written; what a stranger says of itself does not count."""
    assert PROXIES.client_of(request(peer, *forwarded)) == client


def test_without_proxies_nobody_is_believed() -> None:
    assert TrustedProxies().client_of(request("127.0.0.1", "192.0.2.1")) is None


def test_connections_of_proxies_and_of_this_machine_have_no_bound() -> None:
    assert [PROXIES.is_bounded(address) for address in ("10.1.1.1", "127.0.0.2", "192.0.2.1")] == [
        False,
        False,
        True,
    ]


def test_a_proxy_that_is_no_address_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="KB_TRUSTED_PROXIES='proxy"):
        ServerSettings.read({"KB_TRUSTED_PROXIES": "10.0.0.1, proxy.example"})
