"""Options, signatures and documentation of the operations, and the checks that need no array. Private.

The class of an operation on device arrays and its reference implementation inherit from one class here, which has the options
as a frozen dataclass, and the public methods. Only the standard library is used.
"""
