"""HTTP/2 and gRPC, the server's side, as state machines: bytes in, events and bytes out. No I/O, no clock."""
