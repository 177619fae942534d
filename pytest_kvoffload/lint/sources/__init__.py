"""Readers, one a format, to the neutral record."""
