"""Private: arrays of any library, arrays of this package's own, and the workspace."""
