"""The OpenAPI documents of the engine API and of RAGler's operations, made from the one table."""

from kb_contracts.openapi.document import document, possible_errors, written
from kb_contracts.openapi.metadata import ABOUT

__all__ = ["ABOUT", "document", "possible_errors", "written"]
