"""A hunt for faults of cuDNN's engines: drawn problems are run in child processes (docs/dev/hunt.md)."""
