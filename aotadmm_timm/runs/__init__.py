"""Runs: their folder, configuration, log, records and figures; read and written here only."""
