"""What is known of each endpoint: load, RTT, health, engine metrics; snapshots of them."""
