"""The API of an engine: operations, wire models, error codes, formats, and RAGler's operations."""
