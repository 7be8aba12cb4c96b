"""The store on SQLite: one engine, one file."""
