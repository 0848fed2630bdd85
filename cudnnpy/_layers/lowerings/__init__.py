"""The ways to compute what one node of cuDNN's graphs does not: lowerings, v7 functions, and steps around a plan."""
