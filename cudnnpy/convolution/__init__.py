"""Convolutions: problems, their lowerings to cuDNN and their candidates, and the public classes."""
