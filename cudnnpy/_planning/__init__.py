"""Private: how a problem's plan is chosen: engines, candidates, selection, autotune."""
