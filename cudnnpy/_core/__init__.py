"""Private: what the modules above C share: owners of C objects, element types, memory orders, checks of options."""
