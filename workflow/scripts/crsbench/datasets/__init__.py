"""Datasets: the files of a release become one index table, one module per layout."""
