"""`epp up`: Envoy and picker before engines that are given by their addresses alone."""
