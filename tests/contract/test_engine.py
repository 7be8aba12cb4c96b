"""What this engine does beyond the contract: titles, limits that it names, budgets that it fills, its log."""

from __future__ import annotations

import pytest

from tests.contract.conftest import Start
from tests.support.engine_http import LONG, Caller, answered, problem


async def test_a_note_without_a_title_is_called_by_its_first_line(kb: Caller) -> None:
    """White space collapsed, cut to 80 characters."""
    document = await kb.document(await kb.note("\n\n  The   first\tline \nand another"))
    long = await kb.document(await kb.note("word " * 100))
    assert document["title"] == "The first line"
    assert len(long["title"]) <= 80
    assert long["title"].endswith("…")


async def test_a_file_without_a_title_is_called_by_its_own_or_its_name(kb: Caller) -> None:
    """A Markdown file's first heading, a text file's name."""
    markdown = await kb.document(await kb.file("a.md", b"# Stones of the valley\n\ngranite"))
    text = await kb.document(await kb.file("b.txt", b"granite"))
    assert (markdown["title"], text["title"]) == ("Stones of the valley", "b.txt")


async def test_a_title_from_the_old_text_goes_with_it(kb: Caller) -> None:
    """A title that was given stays."""
    untitled = await kb.note("granite")
    titled = await kb.note("granite quarry", title="Stones")
    assert answered(await kb.patch(untitled, text="basalt"))["title"] == "basalt"
    assert answered(await kb.patch(titled, text="basalt columns"))["title"] == "Stones"


async def test_clearing_removes_all_and_cancels_what_was_accepted_before(kb: Caller) -> None:
    """The running job too; what is accepted afterwards is taken in."""
    await kb.note("granite")
    running = await kb.hold()
    for job in running:
        await kb.started(job)
    waiting = await kb.submit(f"basalt {LONG}")
    removed = answered(await kb.http.delete("/api/v1/documents", params={"confirm": "true"}))
    assert (removed["documents"], removed["jobs_cancelled"]) == (1, 3)
    later = await kb.note("marble")
    assert [document["id"] for document in (await kb.documents())["documents"]] == [later]
    for job in (*running, waiting):
        assert (await kb.job(job["id"]))["status"] == "cancelled"


async def test_an_unknown_path_is_told_the_nearest(kb: Caller) -> None:
    """A slip of the pen costs one look."""
    detail = problem(await kb.http.get("/api/v1/serch"), "route_not_found")["detail"]
    assert "/api/v1/search" in detail


async def test_a_json_body_over_the_limit_is_refused_with_the_limit(kb: Caller) -> None:
    content = b'{"query": "' + b"x" * (9 * 1024 * 1024) + b'"}'
    response = await kb.http.post(
        "/api/v1/search", content=content, headers={"Content-Type": "application/json"}
    )
    assert "8388608" in problem(response, "payload_too_large")["detail"]


async def test_health_goes_by_the_name_that_many_probes_use(start: Start) -> None:
    kb = await start(api_key="very-secret-key")
    plain = {"Authorization": ""}
    paths = [await kb.http.get(path, headers=plain) for path in ("/healthz", "/health")]
    assert [(each.status_code, each.json()) for each in paths] == [(200, {"status": "ok"})] * 2


async def test_two_credentials_are_two_callers_and_not_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """No key and no text of a note is in the log."""
    caplog.set_level("DEBUG")
    kb = await start(api_key="very-secret-key")
    headers = {"Authorization": "Bearer very-secret-key"}
    job = answered(await kb.http.post("/api/v1/jobs", json={"text": "granite quarry"}, headers=headers), 202)
    answered(await kb.http.get(f"/api/v1/jobs/{job['id']}", params={"wait": 30}, headers=headers))
    answered(await kb.http.post("/api/v1/search", json={"query": "basalt columns"}, headers=headers))
    ours = "\n".join(
        f"{record.getMessage()} {record.__dict__}"
        for record in caplog.records
        if record.name.startswith("kb_")
    )
    assert ours
    for secret in ("very-secret-key", "granite quarry", "basalt columns"):
        assert secret not in ours
