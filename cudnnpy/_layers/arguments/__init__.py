"""The arguments of calls of layers: checks, and the problem that a call asks for."""
