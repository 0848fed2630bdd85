"""Private: owners of C objects, data types, memory formats, cache tokens, and the few calls of the CUDA driver."""
