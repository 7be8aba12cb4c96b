"""What the server reports of its calls: counts for Prometheus, spans, and what of a query its log may hold.

No secret and no document text enters any of them.
"""
