"""What an engine promises: operations, wire models, error codes, formats, and RAGler's part."""
