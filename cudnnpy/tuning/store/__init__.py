"""The store of tuned choices: entries, SQLite files, exports, and the layers in which a process looks for an entry."""
