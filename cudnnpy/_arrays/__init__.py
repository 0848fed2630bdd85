"""Private: arrays of any library, the package's own device arrays, and the workspace."""
