"""Private: the path of a call: dispatch, the plan cache, the launcher, and the executables that it launches."""

import os

if os.environ.get("CUDNNPY_VERBOSE"):  # every launch imports this package first
    from cudnnpy._launch.tracing import trace_by_environment

    trace_by_environment()
