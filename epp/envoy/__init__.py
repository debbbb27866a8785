"""Envoy configuration built from typed messages; running a local Envoy."""
