"""Private: what everything above C shares: owners of C's objects, element types, memory orders, checks of options."""
