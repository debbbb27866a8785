"""Workloads and traces, load generation, statistics, reports."""
