"""The command `cudnnpy explain`: which candidate is chosen for a problem, and why."""
