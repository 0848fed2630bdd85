"""Direct launches: the kernels of a plan, passed to the driver with the addresses of each launch (DESIGN.md).

The rest of the package works without this folder, and then launches every plan by cuDNN.
"""

from cudnnpy._launch.direct.direct_launch import make_direct_launch

__all__ = ["make_direct_launch"]
