"""Ingestion: from an accepted job to a document that can be found."""
