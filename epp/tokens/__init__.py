"""Models' own tokenizers and chat templates: loading, proving, counting. Needs ``gorgo-epp[tokenizers]``."""
