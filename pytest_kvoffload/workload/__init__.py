"""Seeded shared-prefix prompts, the plan that proves eviction, the streaming client."""
