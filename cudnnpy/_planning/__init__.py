"""Private: choose the plan of a problem (engines, candidates, selection) and serialize it."""
