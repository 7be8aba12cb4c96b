"""Reports about calls: counts for Prometheus, the audit log, and redaction of logged queries.

They contain no secret and no document text.
"""
