"""The errors of documents and jobs whose text is the same whoever serves the contract."""

from __future__ import annotations

from kb_contracts.api.errors import EngineError
from kb_contracts.api.models import JobStatus

_QUEUE_RETRY_SECONDS = 5.0


def document_not_found(key: int | str) -> EngineError:
    """`key` is the number or the uid that was sent."""
    return EngineError(
        "document_not_found", f"There is no document {key}. List documents to see which there are."
    )


def not_a_note(document_id: int) -> EngineError:
    return EngineError(
        "not_a_note",
        f"Document {document_id} came from a file. Add the new file and delete this document.",
    )


def tag_not_found(tag: str) -> EngineError:
    return EngineError("tag_not_found", f"The document does not carry the tag {tag!r}.")


def job_not_found(job_id: str) -> EngineError:
    return EngineError("job_not_found", f"There is no job {job_id}. Ended jobs are kept for a while only.")


def job_finished(status: JobStatus) -> EngineError:
    return EngineError("job_finished", f"The job has ended already: it is {status}.")


def job_not_retryable(status: JobStatus) -> EngineError:
    if status == "failed":
        why = "what was sent for it is not kept any more. Send the note or the file again."
    elif status == "cancelled":
        why = "it was cancelled. Send the note or the file again."
    else:
        why = f"it has not failed: it is {status}."
    return EngineError("job_not_retryable", f"The job cannot be tried again: {why}")


def check_queue_room(waiting: int, max_waiting: int) -> None:
    """Raises EngineError: `queue_full`, where so many jobs wait already."""
    if waiting >= max_waiting:
        raise EngineError(
            "queue_full", f"{waiting} jobs wait already. Try again later.", retry_after=_QUEUE_RETRY_SECONDS
        )
