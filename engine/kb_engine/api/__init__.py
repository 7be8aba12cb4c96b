"""The engine API: one handler for each operation of the contract."""
