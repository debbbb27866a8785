"""Long links on one machine: regions as network namespaces, distance as a process that holds packets."""
