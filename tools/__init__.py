"""Development tools, run from a checkout; nothing in `epp` imports them."""
