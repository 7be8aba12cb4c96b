"""Jobs: accepted, taken in the order of their arrival, ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from .database import Database, Row
from .promise import Refused
from .texts import first_line

ENDED = ("completed", "failed", "cancelled")


class Jobs:
    """The jobs of a base; those that ran when it was last closed wait again."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._db.execute("UPDATE jobs SET status = 'queued' WHERE status = 'running'")

    def add(self, request: Row) -> Row:
        """Accept a job."""
        told = {
            "id": str(uuid4()), "status": "queued", "kind": request["kind"],
            "title": request["title"] or request["filename"] or first_line(request["text"]),
            "filename": request["filename"], "tags": request["tags"], "step": "waiting", "progress": 0.0,
            "completed_steps": 0, "total_steps": 1, "attempts": 0, "document_id": None,
            "document_uid": None, "deduplicated": False, "error": None, "created_at": self._db.now(),
            "started_at": None, "finished_at": None, "retryable": False, "elapsed_seconds": 0.0,
            "estimated_seconds": None,
        }  # fmt: skip
        self._db.execute(
            "INSERT INTO jobs (id, status, attempts, request, answer) VALUES (?, 'queued', 0, ?, ?)",
            told["id"], json.dumps(request), json.dumps(told),
        )  # fmt: skip
        return told

    def one(self, job_id: str) -> Row:
        """A job as it is told.

        Raises:
            Refused: there is none.
        """
        found = self._db.row("SELECT status, answer FROM jobs WHERE id = ?", job_id)
        if found is None:
            raise Refused("job_not_found", "There is no such job.")
        return {**json.loads(found["answer"]), "status": found["status"]}

    def page(self, query: Mapping[str, Any]) -> Row:
        """A page of jobs, newest first."""
        status = query.get("status")
        where, values = ("WHERE status = ?", (status,)) if status else ("", ())
        found = self._db.rows(
            f"SELECT status, answer FROM jobs {where} ORDER BY number DESC LIMIT ? OFFSET ?",
            *values, query["limit"], query["offset"],
        )  # fmt: skip
        listed = [{**json.loads(row["answer"]), "status": row["status"]} for row in found]
        total = self._db.count(f"SELECT count(*) FROM jobs {where}", *values)
        return {"jobs": listed, "total": total, "limit": query["limit"], "offset": query["offset"]}

    def take(self) -> tuple[Row, Row] | None:
        """The oldest job that waits, now running, with what it asks."""
        found = self._db.row("SELECT * FROM jobs WHERE status = 'queued' ORDER BY number LIMIT 1")
        if found is None:
            return None
        told = json.loads(found["answer"])
        told |= {"step": "reading", "attempts": told["attempts"] + 1, "started_at": self._db.now()}
        self._tell(told, "running")
        return told, json.loads(found["request"])

    def _tell(self, told: Row, status: str) -> None:
        self._db.execute(
            "UPDATE jobs SET status = ?, answer = ? WHERE id = ?", status, json.dumps(told), told["id"]
        )

    def end(self, told: Row, status: str, **more: Any) -> None:
        """Close a job that still runs; one that was cancelled stays so."""
        if self.one(told["id"])["status"] == "running":
            now = self._db.now()
            took = datetime.fromisoformat(now) - datetime.fromisoformat(told["started_at"])
            ended = {"finished_at": now, "elapsed_seconds": took.total_seconds(), "step": status}
            self._tell(told | ended | more, status)

    def cancel(self, job_id: str) -> Row:
        """Cancel a job that has not ended.

        Raises:
            Refused: it has, or there is none.
        """
        told = self.one(job_id)
        if told["status"] in ENDED:
            raise Refused("job_finished", "The job has ended.")
        told |= {"status": "cancelled", "step": "cancelled", "finished_at": self._db.now()}
        self._tell(told, "cancelled")
        return told

    def waiting(self) -> list[str]:
        """The ids of the jobs that have not ended."""
        found = self._db.rows("SELECT id FROM jobs WHERE status IN ('queued', 'running')")
        return [row["id"] for row in found]

    def retry(self, job_id: str) -> Row:
        """Queue a failed job again; what it was sent is in its request.

        Raises:
            Refused: it has not failed, or there is none.
        """
        told = self.one(job_id)
        if told["status"] != "failed":
            raise Refused("job_not_retryable", "The job has not failed.")
        told |= {
            "status": "queued", "step": "waiting", "progress": 0.0, "completed_steps": 0, "error": None,
            "started_at": None, "finished_at": None, "retryable": False, "elapsed_seconds": 0.0,
        }  # fmt: skip
        self._tell(told, "queued")
        return told
