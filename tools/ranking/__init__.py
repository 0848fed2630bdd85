"""The ranking of candidates: a survey of their times, the model that is learned from it, and its evaluation."""
