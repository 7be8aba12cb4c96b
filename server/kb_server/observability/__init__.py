"""What the server tells about itself: structured logs on stderr, and counts for Prometheus.

No secret and no document text enters either.
"""

from kb_server.observability.logs import JsonFormatter, configure_logging
from kb_server.observability.metrics import Metrics

__all__ = ["JsonFormatter", "Metrics", "configure_logging"]
