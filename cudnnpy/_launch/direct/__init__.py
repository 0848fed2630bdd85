"""Private: direct launches: the kernels of a plan, passed to the driver with the addresses of each launch (DESIGN.md)."""
