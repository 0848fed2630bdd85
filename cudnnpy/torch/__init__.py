"""The convolutions of a PyTorch program on cudnnpy, without a change to the program.

    import cudnnpy.torch

    with cudnnpy.torch.enable():
        loss = network(images)
        loss.backward()

`enable` replaces two kernels of PyTorch for CUDA tensors, ``aten::_convolution`` and ``aten::convolution_backward``, which
every convolution and transposed convolution goes through, and with ``attention=True`` those of fused attention. Calls that
cudnnpy does not handle fall back to PyTorch's kernels, and `stats` counts them by reason. Importing this module does not import
PyTorch; `enable` does.
"""

from typing import TYPE_CHECKING

from cudnnpy._checks.public_dir import complete_module
from cudnnpy.torch.fallback_stats import Stats, reset_stats, stats
from cudnnpy.torch.registration import disable, enable, is_enabled

__all__ = ["Stats", "disable", "enable", "is_enabled", "reset_stats", "stats"]

Stats.__module__ = __name__  # where users find it

if not TYPE_CHECKING:  # type checkers report unknown names

    def __getattr__(name):
        advice = f"It has {', '.join(__all__)}: within enable(), torch.nn runs on cudnnpy"
        raise AttributeError(f"module 'cudnnpy.torch' has no attribute {name!r}. {advice}")


complete_module(globals())
