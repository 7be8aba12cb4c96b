"""The store: what the engine knows, kept so that nothing acknowledged is lost."""
