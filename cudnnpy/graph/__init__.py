"""Operation graphs as data: the table of their kinds, their text, their descriptors and their problems to plan."""
