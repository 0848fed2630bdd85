"""Plan for a GPU of another machine: device profiles, and the child process that plans for them."""
