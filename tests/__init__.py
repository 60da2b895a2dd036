"""All tests. A package, so that `tests.vectors` and `tests.reference` are ours and not some installed `tests`."""
