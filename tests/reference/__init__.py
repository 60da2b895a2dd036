"""Slow, obvious implementations that judge the compiled ones."""
