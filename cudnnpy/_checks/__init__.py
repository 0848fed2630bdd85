"""Checks that need no array and no CUDA: options, arguments, names, and the texts of their errors. Private.

Only the standard library is used.
"""
