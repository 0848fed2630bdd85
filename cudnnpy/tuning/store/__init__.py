"""The store of tuned choices: entries, SQLite files, exports, and the levels that a process reads."""
