"""Baselines, comparison and verdict."""
