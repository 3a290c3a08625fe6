"""The OpenAI-compatible HTTP door: a translator in front of the same sessions as the other doors."""
