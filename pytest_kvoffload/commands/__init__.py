"""Subcommands of ``kvoffload``, one module each."""
