"""The line that converts another library's array to a NumPy array, for the ends of errors."""

from __future__ import annotations


def numpy_conversion(name: str, array: object) -> str:
    """Return the call that converts an object named `name` to a plain NumPy array; "" if there is none.

    No library is imported. PyTorch's call also detaches the tensor and copies it from a GPU.
    """
    packages = [base.__module__.partition(".")[0] for base in type(array).__mro__]
    if hasattr(array, "filled"):  # a masked array
        return f"{name}.filled(value)"
    if "torch" in packages:  # NumPy lacks bfloat16 and float8
        is_known = not any(kind in str(getattr(array, "dtype", "")) for kind in ("bfloat", "float8"))
        return f"{name}.numpy(force=True)" if is_known else f"{name}.float().numpy(force=True)"
    if "cupy" in packages:
        return f"cupy.asnumpy({name})"
    if "cudnnpy" in packages:
        return f"cudnnpy.to_numpy({name})"
    if isinstance(array, (list, tuple)):
        return f"numpy.asarray({name}, dtype)"
    if isinstance(array, (int, float, memoryview)) or hasattr(array, "__array__"):
        return f"numpy.asarray({name})"
    return f"numpy.from_dlpack({name})" if hasattr(array, "__dlpack__") else ""
