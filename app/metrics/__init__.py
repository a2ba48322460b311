"""Metrics and health of a serving process, over HTTP (docs/observability.md)."""
