"""What is counted, and the page that Prometheus reads."""
