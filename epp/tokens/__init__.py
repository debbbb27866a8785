"""Token counts: estimated from bytes, or by models' own tokenizers (needs ``gorgo-epp[tokenizers]``)."""
