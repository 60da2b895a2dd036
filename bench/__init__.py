"""Benchmarks of the compiled core, and the check that it has not become slower. See bench/README.md."""
