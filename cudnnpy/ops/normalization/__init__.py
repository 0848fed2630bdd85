"""Normalizations and their gradients: batch, layer, RMS, instance and local response."""
