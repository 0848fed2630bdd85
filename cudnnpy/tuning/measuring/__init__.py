"""Private: tuning by measurement. Candidates run, are timed and are verified in a child process (DESIGN.md)."""
