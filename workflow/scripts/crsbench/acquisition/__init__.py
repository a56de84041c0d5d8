"""Acquisition: what is missing of a dataset is fetched, what is there is left as it is."""
