"""Programs for those who work on the package; none of them is installed with it."""
