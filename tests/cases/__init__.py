"""Public reports of engines that say one thing and mean another, each tried end to end through a real Envoy."""
