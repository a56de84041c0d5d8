"""CRS-Bench: a reference-relative reliability benchmark for medical image encoders."""

__version__ = "0.1.0"
