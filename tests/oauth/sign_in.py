"""An authorization server, a server of kb that trusts it, and a person who signs in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urljoin, urlsplit
from uuid import uuid4

import httpx
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.support.patience import ANSWER_SECONDS, JOB_SECONDS, SUITE_SECONDS
from tests.support.stack import Stack
from tests.support.tokens import Issuer, private_jwk

HERE = Path(__file__).parent
SCOPES = ("kb:read", "kb:write", "kb:delete", "kb:admin")
CALLBACK = "http://127.0.0.1:1/callback"
TOKEN_LIFE = 5
"""Lifetime of its tokens, in seconds; the server allows 30 s of leeway, the client does not."""
_MOST_STEPS = 20


def install() -> None:
    """Install the packages in `package-lock.json`, unless they are installed already."""
    lock, installed = HERE / "package-lock.json", HERE / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        npm = shutil.which("npm")
        assert npm is not None, "npm is needed"
        command = [npm, "ci", "--ignore-scripts"]
        subprocess.run(command, cwd=HERE, check=True, capture_output=True, timeout=SUITE_SECONDS)


@contextmanager
def authorization_server(issuer: str, resource: str) -> Iterator[None]:
    install()
    node = shutil.which("node")
    assert node is not None, "Node is needed"
    settings = {
        "issuer": issuer,
        "resource": resource,
        "scopes": SCOPES,
        "seconds": TOKEN_LIFE,
        "keys": [private_jwk("current")],
    }
    with subprocess.Popen(
        [node, str(HERE / "provider.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        lines = iter(process.stdout.readline, "")
        assert any(line == "ready\n" for line in lines), "it does not start"
        yield  # it ends when its stdin is closed


@dataclass
class House:
    """kb, its authorization server, and their addresses."""

    stack: Stack
    issuer: Issuer


@dataclass
class Kept:
    """A client's storage for tokens and registration."""

    tokens: list[OAuthToken] = field(default_factory=list)
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens[-1] if self.tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens.append(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Refused(Exception):
    """The user did not consent."""


@dataclass
class Person:
    """A user with a browser. They log in and consent to all scopes except for `refuses`."""

    transcript: Transcript
    refuses: str = ""
    scopes: list[str] = field(default_factory=list)
    """The scopes of each sign-in."""
    found: dict[str, str] = field(default_factory=dict)

    async def visit(self, url: str) -> None:
        scope = dict(parse_qsl(urlsplit(url).query))["scope"]
        self.scopes.append(" ".join(each for each in scope.split() if each in SCOPES))
        refuses = self.refuses in scope.split()
        async with httpx.AsyncClient(
            headers={"X-Person": "refuses"} if refuses else {}, timeout=ANSWER_SECONDS
        ) as browser:
            for _ in range(_MOST_STEPS):
                if url.startswith(CALLBACK):
                    break
                response = await browser.get(url)
                assert response.is_redirect, response.text
                self.transcript.note("GET", url, response.status_code, browser=True)
                url = urljoin(url, response.headers["Location"])
        self.found = dict(parse_qsl(urlsplit(url).query))

    async def result(self) -> AuthorizationCodeResult:
        if "error" in self.found:
            raise Refused(self.found["error"])
        return AuthorizationCodeResult(
            code=self.found["code"], state=self.found["state"], iss=self.found["iss"]
        )


@dataclass
class Transcript:
    """The requests, without values that differ between runs."""

    house: House
    lines: list[str] = field(default_factory=list)

    def note(self, method: str, url: str, status: int, detail: str = "", *, browser: bool = False) -> None:
        parts = urlsplit(url)
        who = "kb" if url.startswith(self.house.stack.server_url) else "as"
        path = re.sub(r"/[\w-]{43}", "/ID", parts.path)
        names = ", ".join(sorted(name for name, _ in parse_qsl(parts.query)))
        line = f"{'browser' if browser else 'client'} ─▶ {who}  {method} {path}"
        line += f" ({names})" if names else ""
        self.lines.append(f"{line}  {status}" + (f"  {detail}" if detail else ""))

    async def hear(self, response: httpx2.Response) -> None:
        detail = ""
        if challenge := response.headers.get("WWW-Authenticate"):
            detail = challenge.replace(self.house.stack.server_url, "https://kb.example")
        elif response.request.url.path == "/mcp":
            detail = json.loads(response.request.content).get("method", "")
        elif response.request.url.path == "/token":
            detail = dict(parse_qsl(response.request.content.decode()))["grant_type"]
        self.note(response.request.method, str(response.request.url), response.status_code, detail)


@asynccontextmanager
async def signed_in(house: House, person: Person, kept: Kept) -> AsyncIterator[Client]:
    """Yield the official client with its own sign-in."""
    metadata = OAuthClientMetadata(
        client_name="kb's test",
        redirect_uris=[AnyUrl(CALLBACK)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    auth = OAuthClientProvider(house.stack.mcp_url, metadata, kept, person.visit, person.result)
    hooks = {"response": [person.transcript.hear]}
    async with (
        httpx2.AsyncClient(auth=auth, event_hooks=hooks, timeout=ANSWER_SECONDS) as http,
        Client(streamable_http_client(house.stack.mcp_url, http_client=http), mode="2026-07-28") as client,
    ):
        yield client


async def note(client: Client) -> int:
    """Add a note and return its document."""
    added = await client.call_tool(
        "kb_addnote", {"text": f"Granite is a rock: {uuid4()}", "wait_seconds": JOB_SECONDS}
    )
    assert not added.is_error
    assert added.structured_content is not None
    return int(added.structured_content["document_id"])
