"""The sign-in of the official clients with only a URL, at a certified authorization server.

A request without a token, discovery of the authorization server, its metadata, registration, an authorization
code with PKCE, a token for this resource, tools, a tool that needs a wider scope, the sign-in for it, an
expired token, its refresh, tools again. Also invalid tokens that are signed with the server's own keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from kb_load.processes import free_port
from tests.conformance import node
from tests.oauth.sign_in import (
    HERE,
    House,
    Kept,
    Person,
    Refused,
    Transcript,
    authorization_server,
    note,
    signed_in,
)
from tests.support.eventually import eventually_async
from tests.support.mcp_messages import request
from tests.support.patience import ANSWER_SECONDS, COMMAND_SECONDS
from tests.support.stack import running_stack
from tests.support.tokens import BAD, Bad, Issuer

pytestmark = pytest.mark.process

PAGE = HERE.parents[1] / "docs" / "access-reference.md"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    issuer = f"http://127.0.0.1:{free_port()}"
    home = tmp_path_factory.mktemp("home")
    with (
        running_stack(home, KB_EMBEDDER="hash", KB_OAUTH_ISSUER=issuer, KB_TOOLSETS="kb,kb-extra") as stack,
        authorization_server(issuer, stack.mcp_url),
    ):
        yield House(stack, Issuer(issuer, stack.mcp_url))


async def test_a_client_gets_the_scopes_that_the_person_grants(house: House) -> None:
    transcript, kept = Transcript(house), Kept()
    person = Person(transcript)
    async with signed_in(house, person, kept) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert {"kb_search", "kb_addnote", "kb_delete"} <= tools
        assert [token.scope for token in kept.tokens] == ["kb:read kb:write"]
        assert kept.tokens[0].refresh_token
        document = await note(client)
        assert not (await client.call_tool("kb_delete", {"document_id": document})).is_error
        assert person.scopes == ["kb:read kb:write", "kb:read kb:write kb:delete"]
        held = len(kept.tokens)

        async def refreshed() -> bool:
            assert not (await client.call_tool("kb_status", {})).is_error
            return len(kept.tokens) > held

        await eventually_async(refreshed, what="a token that was refreshed")
        assert not (await client.call_tool("kb_delete", {"document_id": await note(client)})).is_error
        assert len(person.scopes) == 2, "the wider scope outlives the refresh"
    print("\n".join(dict.fromkeys(transcript.lines)))
    # On a busy machine the token may be refreshed earlier, and so in a different order.
    assert set(transcript.lines) == set(re.findall(r"^ {4}(.+ ─▶ .+)$", PAGE.read_text(), re.MULTILINE))


async def test_a_person_who_refuses_a_wider_scope_is_not_asked_in_a_loop(house: House) -> None:
    kept = Kept()
    person = Person(Transcript(house), refuses="kb:delete")
    with pytest.RaisesGroup(Refused, flatten_subgroups=True):
        async with signed_in(house, person, kept) as client:
            await client.call_tool("kb_delete", {"document_id": await note(client)})
    async with signed_in(house, person, kept) as client:
        assert await note(client), "the narrower token still works"
    assert person.scopes == ["kb:read kb:write", "kb:read kb:write kb:delete"]


@pytest.mark.parametrize("generation", ["sdk", "client"])
@pytest.mark.parametrize("decision", ["agrees", "refuses"])
def test_the_typescript_clients_sign_in_for_a_wider_scope(
    house: House, generation: str, decision: str
) -> None:
    """Generation 1 (`sdk`) replaces its scopes by the scopes of the challenge, which therefore lists all."""
    node.install()
    done = node.run(
        node.HERE / "sign_in.mjs", generation, house.stack.mcp_url, decision, seconds=COMMAND_SECONDS
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print("\n".join(" ".join(map(str, line)) for line in found.pop("requests")))
    wider = "kb:read kb:write kb:delete"
    agrees = decision == "agrees"
    # Generation 1 remembers the challenge and does not start a second sign-in.
    sign_ins = [wider] if agrees or generation == "sdk" else [wider, wider]
    assert found["scopes"] == ["kb:read kb:write", *sign_ins]
    assert found["granted"] == (wider if agrees else "kb:read kb:write")
    assert found["removed"] == (True if agrees else "access_denied")
    assert ("again" in found) == (not agrees)
    assert found["added"]
    assert found["read"]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.what)
def test_a_bad_token_is_refused(house: House, bad: Bad) -> None:
    headers = {"Authorization": f"Bearer {bad.make(house.issuer)}"}
    response = httpx.post(house.stack.mcp_url, json=request("ping"), headers=headers, timeout=ANSWER_SECONDS)
    assert response.status_code == bad.status
    assert f'error="{bad.error}"' in response.headers["WWW-Authenticate"]
    assert f'error_description="{bad.words}"' in response.headers["WWW-Authenticate"]


def test_a_good_one_of_the_same_kind_is_taken(house: House) -> None:
    headers = {"Authorization": f"Bearer {house.issuer.token()}"}
    assert (
        httpx.post(
            house.stack.mcp_url, json=request("ping"), headers=headers, timeout=ANSWER_SECONDS
        ).status_code
        == 200
    )


def test_a_token_of_another_resource_of_the_same_server_is_refused(house: House) -> None:
    headers = {"Authorization": f"Bearer {house.issuer.token(aud='http://127.0.0.1:1/mcp')}"}
    assert (
        httpx.post(
            house.stack.mcp_url, json=request("ping"), headers=headers, timeout=ANSWER_SECONDS
        ).status_code
        == 401
    )
