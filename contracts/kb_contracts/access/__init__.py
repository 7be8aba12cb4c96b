"""Callers and their access: identities, the key file, and the header that carries both."""
