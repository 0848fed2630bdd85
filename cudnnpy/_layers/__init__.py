"""The classes that users call on arrays, one file each, and the steps that they share. Public names are in `cudnnpy`."""
