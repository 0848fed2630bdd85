"""Pooling and its gradient."""
