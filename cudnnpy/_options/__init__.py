"""Options of the operations: their names, defaults, checks and canonical form. Private; the standard library alone is used.

The classes on device arrays and their reference implementations both inherit from the classes here.
"""
