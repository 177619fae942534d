"""Scrape, snapshot, delta, quantiles, and names by version."""
