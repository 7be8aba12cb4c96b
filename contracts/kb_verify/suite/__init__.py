"""The promises of the engine API, one test each. Run it through `kb verify` or the plugin beside it."""
