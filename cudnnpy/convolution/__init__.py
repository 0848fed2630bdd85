"""The convolution layer: what is asked (problem), what could do it (candidates), which one (selection), ready to run (plan)."""
