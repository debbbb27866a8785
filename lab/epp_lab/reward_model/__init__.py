"""How a reward model is trained, judged and watched: data pools, network, gate, monitors. Pure."""
