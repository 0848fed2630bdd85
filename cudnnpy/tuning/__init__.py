"""Tuning: measured, stored and ranked choices. The layer finds its chooser by one import, and plans without it, too."""
