"""Batch normalization and its gradients."""
