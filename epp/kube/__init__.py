"""Endpoints and priorities from a Kubernetes cluster."""
