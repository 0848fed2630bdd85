"""Convolutions: the public classes, their problems, and the lowerings and candidates of a problem."""
