"""The promises of the engine API, one test a promise. Run it through `kb verify` or the plugin beside it."""
