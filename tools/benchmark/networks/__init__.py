"""Whole networks: every distinct convolution of many of them, and inference and training of a few."""
