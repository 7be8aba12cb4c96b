"""Who asks, and how far that reaches: identities, the file of keys, and the header that carries both."""
