"""`kb check`: check the consistency of a base while no engine uses it, and repair it if possible."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kb_cli.config import base_failures, offline_embedder, read
from kb_cli.output import Exit, Output, counted
from kb_engine.care.check import Check
from kb_engine.composition import filled_by, open_store
from kb_engine.settings import EngineSettings
from kb_engine.store.sqlite.damage import Damage, examine

if TYPE_CHECKING:
    from kb_engine.care.check import Finding
    from kb_engine.embed.offline import OfflineEmbedder

_FROM_COPY = "only a whole base can be restored from a copy (kb restore)"
_SEND = "send the same file or note again (kb add, kb addnote) when the engine runs"


def run(options: argparse.Namespace, out: Output) -> int:
    """Check every document of the base of the settings."""
    settings = read(EngineSettings, options)
    embedder = offline_embedder(settings)
    with base_failures(), embedder:
        found = asyncio.run(_check(settings, embedder, options, out))
    hurt, repaired = found["hurt"], sum(each["repaired"] for each in found["hurt"])
    is_whole = not found["damage"] and repaired == len(hurt)
    could_help = found["damage"] or any(not each["repaired"] for each in hurt)
    if could_help and not options.repair:
        out.note("kb check --repair rebuilds derived data and lists the remaining damage")
    if not out.answered(found):
        mended = f", {repaired} repaired" if repaired else ""
        summary = f"{counted(found['documents'], 'document')} checked, {len(hurt)} damaged{mended}"
        out.text(summary, style="green" if is_whole else "yellow")
    return Exit.OK if is_whole else Exit.FAILED


async def _check(
    settings: EngineSettings, embedder: OfflineEmbedder, options: argparse.Namespace, out: Output
) -> dict[str, Any]:
    await filled_by(settings)  # first, because opening a missing base would create it
    found: dict[str, Any] = {"documents": 0, "damage": [], "hurt": []}
    damage = await _damage(settings, options, out)
    # Content of a damaged base is no reliable source for a repair.
    if damage.left:
        return {**found, **damage.answer}
    store, _ = await open_store(settings, embedder.identity)
    try:
        check = Check(store, embedder, deep=options.deep, repair=options.repair)
        for findings, rest in ((check.findings(), _SEND), (check.hurt_versions(), _FROM_COPY)):
            async for finding in findings:
                found["hurt"].append(asdict(finding))
                out.note(_line(finding, options.repair, rest))
    finally:
        await store.close()
    return {**found, **damage.answer, "documents": check.documents}


async def _damage(settings: EngineSettings, options: argparse.Namespace, out: Output) -> Damage:
    """Return the damage that SQLite finds, before any read by an index; PostgreSQL has no such check."""
    if settings.address is not None:
        return Damage([], [])
    found = await asyncio.to_thread(examine, settings.database, repair=options.repair)
    for each in found.mended:
        out.note(f"the base was damaged: {each}: repaired (indexes rebuilt from the tables)")
    for each in found.left:
        why = "; its tables are damaged, not only an index: replace the base by a copy (kb restore)"
        out.note(f"the base is damaged: {each}{why if options.repair else ''}")
    return found


def _line(finding: Finding, repair: bool, rest: str) -> str:
    title = f"document {finding.document_id} ({finding.title[:60]})"
    if not repair:
        return f"{title}: {', '.join(finding.faults)}"
    parts = [f"{each}: repaired" for each in finding.done]
    parts += [f"{each}; {rest}" for each in finding.left]
    return f"{title}: {', '.join(parts)}"
