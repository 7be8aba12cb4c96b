"""What the server reports of itself: counts for Prometheus, and spans. `kb_config.logs` configures its log.

No secret and no document text enters any of them.
"""

from kb_server.observability.metrics import Metrics

__all__ = ["Metrics"]
