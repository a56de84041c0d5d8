"""Probes: features to logits and fit diagnostics, one module per probe."""
