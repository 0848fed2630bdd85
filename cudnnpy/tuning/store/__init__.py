"""The store of tuned choices: entries, the file of lines, and the levels that a process reads."""
