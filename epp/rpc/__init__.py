"""From bytes to calls: connections, HTTP/2, gRPC, fair turns."""
