"""Private: the path of a call: dispatch, the cache of plans, the launcher, and the executables that it launches."""
