"""The options of convolutions and of planning, as frozen dataclasses, and checks that need no array. Private.

Only the standard library is used.
"""
