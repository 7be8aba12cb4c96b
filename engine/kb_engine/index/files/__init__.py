"""Parts of an index that lives in memory-mapped files beside the base."""
