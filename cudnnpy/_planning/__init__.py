"""Private: how the plan of a problem is chosen (engines, candidates, selection, autotune)."""
