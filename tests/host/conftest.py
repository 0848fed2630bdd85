"""What the tests without a GPU share."""

import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from stand_in_device import stand_in
from stand_in_driver import cuda_driver
from stand_in_graphs import graphs
from stand_in_library import libcudnn

HERE = Path(__file__).resolve().parent
if str(HERE) in sys.path:  # pytest's doing; from there, `import torch` would find the folder torch
    sys.path.remove(str(HERE))
# A few tests import others.
sys.path += [str(folder) for folder in sorted(HERE.iterdir()) if folder.is_dir() and folder.name != "__pycache__"]

__all__ = ["cuda_driver", "graphs", "libcudnn", "stand_in"]

if find_spec("cudnnpy.tuning") is not None:  # a copy of the core has none (test_core_alone.py)
    from made_up_engines import cudnn
    from offline_profiles import own_planner, planner_of_the_file, profile_file, without_driver
    from planning import plan, planning_environment

    __all__ += ["cudnn", "plan", "planning_environment"]
    __all__ += ["own_planner", "planner_of_the_file", "profile_file", "without_driver"]


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Let garbage collection pass over what earlier files left, since some tests collect dozens of times.

    Not in tests/gpu: a cycle that holds memory of the GPU would never be freed.
    """
    gc.collect()
    gc.freeze()
