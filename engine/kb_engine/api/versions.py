"""`/documents/{id}/versions` and `/trash`: past versions of documents, and their restoration."""

from __future__ import annotations

from kb_contracts.api import models as m
from kb_engine.api.documents import caller_of
from kb_engine.api.engine import Api
from kb_engine.store.repository import arrivals, versions
from kb_http.requests import Incoming


class VersionsApi(Api):
    """Handlers of `listVersions`, `getVersion`, `restoreVersion`, `purgeVersions` and `listTrash`."""

    async def list_versions(self, incoming: Incoming) -> m.PastVersionList:
        query = incoming.query
        return await self._store.read(versions.page, incoming.document_key, query.limit, query.offset)

    async def get_version(self, incoming: Incoming) -> m.PastVersionDetail:
        query = incoming.query
        return await self._store.read(
            versions.detail,
            incoming.document_key,
            incoming.path["version"],
            query.text_offset,
            query.text_limit,
        )

    async def restore_version(self, incoming: Incoming) -> m.Document:
        """Restore with the stored vectors; after a change of the embedder, with new ones."""
        key, version = incoming.document_key, incoming.path["version"]
        if_match = incoming.if_match
        try:
            return await self._once(incoming, arrivals.restore, key, version, if_match)
        except arrivals.VectorsMissing as missing:
            past = missing.past
        title = past.members.title
        vectors = await self._engine.pipeline.embed(title, past.chunks, caller=caller_of(incoming))
        return await self._once(incoming, arrivals.restore, key, version, if_match, vectors)

    async def purge_versions(self, incoming: Incoming) -> m.Purged:
        return await self._once(incoming, versions.purge, incoming.document_key)

    async def list_trash(self, incoming: Incoming) -> m.PastVersionList:
        return await self._store.read(versions.trash, incoming.query.limit, incoming.query.offset)
