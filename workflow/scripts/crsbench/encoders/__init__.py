"""Encoders: cards say what an encoder is, transforms what it sees, loaders how it is built."""
