"""The measuring process: candidates run, are timed and verified in a process of their own."""
