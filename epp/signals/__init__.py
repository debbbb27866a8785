"""What is known per endpoint: prefix index, load ledger, RTT table, engine metrics; the view over them."""
