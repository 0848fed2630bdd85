"""Candidates in the order of predicted times: the ranking model, its features, and the order."""
