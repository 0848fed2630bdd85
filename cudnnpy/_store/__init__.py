"""The store of tuned choices: entries, the files that keep them, and the layers in which a process looks for them."""
