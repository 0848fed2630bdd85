"""Tuning: a chooser that ranks candidates, and that knows stored and measured choices. The layer finds it by itself."""
