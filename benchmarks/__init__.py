"""Measurements: `make bench` runs them all; each is a module with `run(quick) -> list[Report]`."""
