"""The process: what is built from the configuration, started and stopped; workers, health, TLS."""
