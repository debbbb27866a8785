"""The demo: a real Envoy, the picker and simulated replicas, composed from all the other parts."""
