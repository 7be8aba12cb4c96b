"""`kb check`: check the consistency of a base while no engine uses it, and repair it if possible."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kb_cli.config import offline_embedder, read
from kb_cli.output import CliError, Exit, Output
from kb_engine.app import StartError, filled_by, open_store
from kb_engine.care.check import Check
from kb_engine.embed.protocol import EmbedderUnavailable, TextRefused
from kb_engine.settings import EngineSettings
from kb_engine.store.port import BaseRefused

if TYPE_CHECKING:
    from kb_engine.care.check import Finding
    from kb_engine.embed.offline import OfflineEmbedder

_REST = "restore it from a copy (kb restore), or send it again"


def run(options: argparse.Namespace, out: Output) -> int:
    """Check every document of the base of the settings."""
    settings = read(EngineSettings, options)
    embedder = offline_embedder(settings)
    try:
        with embedder:
            found = asyncio.run(_check(settings, embedder, options, out))
    except (BaseRefused, StartError, EmbedderUnavailable, TextRefused) as error:
        raise CliError(Exit.FAILED, str(error)) from error
    hurt, repaired = found["hurt"], sum(each["repaired"] for each in found["hurt"])
    is_whole = not found["damage"] and repaired == len(hurt)
    if not out.answered(found):
        mended = f", {repaired} were mended" if repaired else ""
        summary = f"{found['documents']} documents looked at, {len(hurt)} are hurt{mended}"
        out.text(summary, style="green" if is_whole else "yellow")
    return Exit.OK if is_whole else Exit.FAILED


async def _check(
    settings: EngineSettings, embedder: OfflineEmbedder, options: argparse.Namespace, out: Output
) -> dict[str, Any]:
    await filled_by(settings)  # first, because opening a missing base would create it
    store, _ = await open_store(settings, embedder.identity)
    try:
        check = Check(store, embedder, deep=options.deep, repair=options.repair)
        damage = await check.damage()
        hurt: list[Finding] = []
        for each in damage:
            out.note(f"the base is damaged: {each}")
        # Content of a damaged base is no reliable source for a repair.
        if not damage:
            async for finding in check.findings():
                hurt.append(finding)
                out.note(_line(finding, options.repair))
    finally:
        await store.close()
    return {"documents": check.documents, "damage": damage, "hurt": [asdict(each) for each in hurt]}


def _line(finding: Finding, repair: bool) -> str:
    what = f"document {finding.document_id} ({finding.title[:60]}): {', '.join(finding.faults)}"
    if finding.repaired:
        return f"{what}: mended"
    return f"{what}; {_REST}" if repair else what
