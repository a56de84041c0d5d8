"""Loaders: one module per family of releases, so that a new one re-runs nothing else."""
