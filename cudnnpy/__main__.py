"""`python -m cudnnpy` is the command `cudnnpy`."""

import sys

from cudnnpy.cli import main

if __name__ == "__main__":
    sys.exit(main())
