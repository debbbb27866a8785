"""All the I/O: gRPC and HTTP faces, probes, scrapers, file watching, tasks."""
