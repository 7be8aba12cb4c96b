"""`kb collections`: what there is under which name, and how it is described."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from kb_cli.connect import engine
from kb_cli.exits import CliError, Exit
from kb_cli.output import Output
from kb_contracts.api import ragler as r
from kb_contracts.api.operations import GET_COLLECTION, LIST_COLLECTIONS, PUT_COLLECTION

if TYPE_CHECKING:
    from kb_cli.client import EngineClient


def run(options: argparse.Namespace, out: Output) -> None:
    """List all, show one, or describe one."""
    members = {
        "description": options.describe,
        "created_by": options.created_by,
        "target_audience": options.audience,
        "usage_scenarios": options.scenario,
    }
    given = {name: value for name, value in members.items() if value is not None}
    if given and options.collection is None:
        raise CliError(Exit.USAGE, "name the collection to describe")
    with engine(options) as client:
        if options.collection is None:
            _list(client.call(LIST_COLLECTIONS), out)
            return
        known = _known(client, options.collection)
        if given:
            _show(_describe(client, options.collection, known, given), out)
        elif known is None:
            raise CliError(Exit.NOT_FOUND, f"there is no collection {options.collection!r}")
        else:
            _show(client.call(GET_COLLECTION, path={"collection_id": known.id}), out)


def _known(client: EngineClient, key: str) -> r.CollectionSummary | None:
    """By its name, else by its id."""
    listed = client.call(LIST_COLLECTIONS).collections
    named = [each for each in listed if each.name == key]
    return next(iter(named or [each for each in listed if each.id == key]), None)


def _describe(
    client: EngineClient, name: str, known: r.CollectionSummary | None, given: dict[str, str | list[str]]
) -> r.CollectionDetail:
    """What is not given stays as it was."""
    present: dict[str, object] = {}
    if known is not None:
        detail = client.call(GET_COLLECTION, path={"collection_id": known.id})
        lists = {"target_audience": detail.target_audience, "usage_scenarios": detail.usage_scenarios}
        present = {member: value for member, value in lists.items() if value is not UNSET}
        present |= {"name": detail.name, "description": detail.description}
    try:
        wanted = msgspec.convert({"name": name, **present, **given}, r.CollectionRequest)
    except msgspec.ValidationError as error:
        raise CliError(Exit.USAGE, f"a description does not fit: {error}") from error
    return client.call(
        PUT_COLLECTION,
        path={"collection_id": known.id if known else r.collection_id(name)},
        body=wanted,
    )


def _list(answer: r.CollectionList, out: Output) -> None:
    if out.answered(answer):
        return
    rows = [
        [each.name, each.chunk_count, each.description, each.created_by, each.created_at, each.id]
        for each in answer.collections
    ]
    out.table(["collection", "chunks", "description", "created by", "created", "id"], rows)


def _show(detail: r.CollectionDetail, out: Output) -> None:
    if out.answered(detail):
        return
    figures = detail.statistics
    out.facts(
        [
            ("collection", detail.name),
            ("id", detail.id),
            ("description", detail.description),
            ("audience", _joined(detail.target_audience)),
            ("scenarios", _joined(detail.usage_scenarios)),
            ("chunks", detail.chunk_count),
            ("tokens", f"{figures.total_tokens}, {figures.avg_chunk_size:g} a chunk"),
            ("created", f"{detail.created_at} by {detail.created_by}"),
            ("last change", detail.updated_at),
        ]
    )


def _joined(items: Sequence[str] | UnsetType) -> str:
    return "" if isinstance(items, UnsetType) else "; ".join(items)
