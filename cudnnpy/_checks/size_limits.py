"""Limits of input sizes and printed sizes, so that no small file or argument takes gigabytes."""

MAX_PROBLEM_FILE_BYTES = 16 << 20
MAX_REPORTED_LINES = 1000  # of a file of problems that are none; a file with more of them is another text
MAX_PROBLEM_CHARACTERS = 1 << 20  # of a problem in the notation
MAX_PLAN_CHARACTERS = 4 << 20  # of a serialized plan
MAX_STORE_LINE_BYTES = 16 << 20  # of an entry, which has about 50,000
MAX_STORE_HEADER_BYTES = 1000
MAX_PROFILE_BYTES = 1 << 20  # of a device profile, which has about 700
MAX_AXES = 64  # of an array, and so the elements of an option
MAX_KNOBS = 100  # of an engine
MAX_SHOWN_CHARACTERS = 1000  # of a value in the message of an error
MAX_PRINTED_CHARACTERS = 3000  # of a line of a message that the command prints
