"""This process: its module-level state, whether CUDA can be used in it, and how the package was installed."""
