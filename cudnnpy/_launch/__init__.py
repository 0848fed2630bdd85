"""Private: the path of a call: dispatch, the plan cache, the launcher, and the executables that it launches."""
