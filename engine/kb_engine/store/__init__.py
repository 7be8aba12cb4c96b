"""The store: the durable state of the engine. Acknowledged changes are never lost."""
