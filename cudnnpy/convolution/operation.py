"""From arrays to a launched plan: what Convolution's four operations share. A known signature does no set-up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnnpy import workspace as memory
from cudnnpy.arrays import OWN, ArrayLibrary, TensorSpec, finish, library_of, packed_strides, read, spec_of
from cudnnpy.convolution import problem as ask
from cudnnpy.convolution.autotune import Tuner
from cudnnpy.convolution.bias_gradient import BiasGradient
from cudnnpy.convolution.candidates import Candidate, Engine
from cudnnpy.convolution.epilogue import Epilogue
from cudnnpy.convolution.plan import Plan
from cudnnpy.convolution.problem import Options, Problem
from cudnnpy.convolution.selection import choose, survey
from cudnnpy.dtypes import dtype_of
from cudnnpy.engines import Target
from cudnnpy.errors import CaptureError, NoAlgorithmError
from cudnnpy.handle import Handle, on_device, stream_address
from cudnnpy.launching import Launcher, is_capturing
from cudnnpy.plan_cache import plan_cache

# options -> a small number: a key that is hashed on every call stays small
_numbers: dict[Options, int] = {}

# operation: names of the two inputs, in the order of the arguments
INPUTS = {"forward": ("x", "w"), "backward_data": ("dy", "w"), "backward_filter": ("dy", "x")}


class Ready:
    """One signature, planned: all that a call needs beside its addresses."""

    __slots__ = ("finish", "launcher", "library", "make", "read", "workspace_size")

    def __init__(self, plan: Any, launcher: Launcher, library: ArrayLibrary, make: Callable[[], Any]) -> None:
        self.launcher, self.library, self.make = launcher, library, make
        self.workspace_size: int = plan.workspace_size
        self.finish = library.name == "jax"
        # a result for JAX is a DeviceArray until it is complete
        self.read = OWN.read if self.finish else library.read


class Operation:
    """Options, and the operations under them. `number` stands for the options in cache keys."""

    def __init__(self, options: Options) -> None:
        self.options = ask.checked(options)
        self.number = _numbers.setdefault(self.options, len(_numbers))
        # policy "once": the engine that served the first shape; engines are numbered for each kind of graph
        self._first: dict[tuple[str, bool, str | None], Engine] = {}

    def run(
        self,
        operation: str,
        first: Any,
        second: Any,
        shape: Any,
        bias: Any,
        activation: str | None,
        out: Any,
        alpha: float,
        beta: float,
        stream: Any,
    ) -> Any:
        """Runs an operation on two arrays, and returns `out` or a new array of the first one's library."""
        library = library_of(first, INPUTS[operation][0])
        a, a_signature = library.read(first)
        b, b_signature = library_of(second, INPUTS[operation][1]).read(second)
        c = r = 0
        bias_signature = out_signature = None
        if bias is not None:
            c, bias_signature = library_of(bias, "bias").read(bias)
        if out is not None:
            r, out_signature = library_of(out, "out").read(out)
        key: tuple[Any, ...] = (
            self.number,
            operation,
            a_signature,
            b_signature,
            shape,
            bias_signature,
            activation,
            out_signature,
            alpha,
            beta,
        )
        if (a | b | c | r) & 15:  # rare: planned for by themselves
            key = (*key, *(min(pointer & -pointer, 16) for pointer in (a, b, c, r)))
        address = library.current_stream(a_signature[3]) if stream is None else stream_address(stream)
        ready: Ready | None = plan_cache().find(key)
        if ready is None:
            ready = self._prepare(operation, key, (first, second, bias, out), shape, activation, alpha, beta, address)
        result = out
        if out is None:
            result = ready.make()
            r = ready.read(result)[0]
        launcher = ready.launcher
        space = memory.workspace(ready.workspace_size, launcher.device, address) if ready.workspace_size else 0
        launcher.run((a, b, r, space) if bias is None else (a, b, c, r, space), address)
        return finish(ready.library, result, address) if ready.finish and out is None else result

    def run_bias(self, dy: Any, out: Any, alpha: float, beta: float, stream: Any) -> Any:
        """backward_bias: the same manners for one input."""
        library = library_of(dy, "dy")
        pointer, signature = read(dy, "dy")
        r, out_signature = (0, None) if out is None else read(out, "out")
        address = library.current_stream(signature[3]) if stream is None else stream_address(stream)
        alignment = min(pointer & -pointer, 16)
        key = (self.options.layout, "backward_bias", signature, alignment, out_signature, alpha, beta)
        ready: Ready | None = plan_cache().find(key)
        if ready is None:
            ready = self._prepare_bias(key, dy, out, alpha, beta, address)
        result = out
        if out is None:
            result = ready.make()
            r = ready.read(result)[0]
        launcher = ready.launcher
        space = memory.workspace(ready.workspace_size, launcher.device, address) if ready.workspace_size else 0
        launcher.run((pointer, r, space), address)
        return finish(ready.library, result, address) if ready.finish and out is None else result

    def finish_in_place(self, result: Any, bias: Any, activation: str | None, stream: Any) -> None:
        """activation(result + bias) in place: for a transposed convolution, into which cuDNN fuses neither."""
        library = library_of(result, "out")
        r, signature = library.read(result)
        c, bias_signature = (0, None) if bias is None else read(bias, "bias")
        address = library.current_stream(signature[3]) if stream is None else stream_address(stream)
        alignments = min(r & -r, 16), min(c & -c, 16)
        key = (self.options.layout, "epilogue", signature, bias_signature, activation, alignments)
        launcher: Launcher | None = plan_cache().find(key)
        if launcher is None:
            _refuse_capture("forward", address)
            y = ask.canonical(self._logical(spec_of(signature, alignments[0]), "out"), "out")
            added = None if bias_signature is None else spec_of(bias_signature, alignments[1])
            ask.check_bias(added, y.shape[1], y.dtype)
            with on_device(signature[3]):
                launcher = Launcher(Epilogue(y, added, activation, signature[3]))
            plan_cache().store(key, launcher)
        launcher.run((r, r) if bias is None else (r, c, r), address)

    def _prepare_bias(self, key: Any, dy: Any, out: Any, alpha: float, beta: float, stream: int) -> Ready:
        _refuse_capture("backward_bias", stream)
        pointer, signature = read(dy, "dy")
        spec = ask.canonical(self._logical(spec_of(signature), "dy"), "dy")
        if spec.dtype not in ("float16", "bfloat16", "float32", "float64"):
            raise TypeError(f"dy: {spec.dtype} given; expected float16, bfloat16, float32 or float64")
        if any(size < 1 for size in spec.shape):
            raise ValueError(f"dy: shape {spec.shape} is empty; expected sizes of 1 or more")
        spec = spec._replace(alignment=min(pointer & -pointer, 16))
        channels = (spec.shape[1],)
        if beta and out is None:
            raise ValueError(f"beta: {beta} given without out; beta * out needs the array that it reads")
        ask.check_scales(alpha, beta)
        if out is not None:
            _, out_signature = read(out, "out")
            given = spec_of(out_signature)
            if given.shape != channels or given.dtype != spec.dtype or given.strides not in (None, (1,)):
                raise ValueError(
                    f"out: {given.dtype} of shape {given.shape} given; expected packed {spec.dtype} {channels}"
                )
            if out_signature[3] != signature[3]:
                raise ValueError(f"out is on device {out_signature[3]}; expected device {signature[3]}, where dy is")
            _check_writable(out)
        library, device = library_of(dy, "dy"), signature[3]
        with on_device(device):
            plan = BiasGradient(spec, float(alpha), float(beta), device)
            launcher = Launcher(plan)
        ready = Ready(plan, launcher, library, library.maker(channels, (1,), dtype_of(spec.dtype), device))
        plan_cache().store(key, ready)
        return ready

    # Set-up, once for each signature

    def _prepare(
        self,
        operation: str,
        key: tuple[Any, ...],
        arrays: tuple[Any, ...],
        shape: Any,
        activation: str | None,
        alpha: float,
        beta: float,
        stream: int,
    ) -> Ready:
        _refuse_capture(operation, stream)
        first, second, bias, out = arrays
        library = library_of(first, INPUTS[operation][0])
        device, problem = self._problem(operation, arrays, shape, activation, alpha, beta)
        result = problem.specs[-1]
        if out is not None:
            _check_writable(out)
        inputs = [read(array, name)[0] for array, name in zip((first, second), INPUTS[operation], strict=True)]
        if bias is not None:
            inputs.append(read(bias, "bias")[0])
        target = read(out, "out")[0] if out is not None else None
        tuner = Tuner(Handle.default(device), tuple(inputs), target, stream)
        with on_device(device):
            plan = self._choose_what_fits(problem, tuner, stream)
            plan.candidates = []  # a cache of thousands of plans need not keep them
        axes = ask.from_logical(result.shape, self.options.channels_last)
        assert result.strides is not None
        strides = ask.from_logical(result.strides, self.options.channels_last)
        ready = Ready(plan, plan.launcher(), library, library.maker(axes, strides, dtype_of(result.dtype), device))
        plan_cache().store(key, ready)
        return ready

    def _choose_what_fits(self, problem: Problem, tuner: Tuner, stream: int) -> Plan:
        """The plan that the options ask for whose workspace the device can give. Raises MemoryError if there is none."""
        cap = None
        while True:
            try:
                plan = self.choose_plan(problem, tuner, cap)
            except NoAlgorithmError as error:
                if cap is None:
                    raise
                raise MemoryError(
                    f"no more than {cap + 1} bytes of workspace can be had, and then:\n{error}"
                ) from error
            try:
                if plan.workspace_size:
                    memory.workspace(plan.workspace_size, plan.device, stream)
                return plan
            except MemoryError:
                if self.options.algorithm is not None:
                    raise
                cap = plan.workspace_size - 1

    def _problem(
        self, operation: str, arrays: tuple[Any, ...], shape: Any, activation: str | None, alpha: float, beta: float
    ) -> tuple[int, Problem]:
        names = (*INPUTS[operation], "bias", "out")
        found = {name: read(array, name) for name, array in zip(names, arrays, strict=True) if array is not None}
        device = found[names[0]][1][3]
        specs: dict[str, TensorSpec] = {}
        for name, (pointer, signature) in found.items():
            if signature[3] != device:
                raise ValueError(f"{name} is on device {signature[3]}; expected device {device}, where {names[0]} is")
            specs[name] = spec_of(signature, min(pointer & -pointer, 16))
            if specs[name].alignment % dtype_of(specs[name].dtype).itemsize:
                raise ValueError(f"{name}: address {pointer:#x} is no multiple of the size of a {specs[name].dtype}")
        return device, self.problem(
            operation,
            specs[names[0]],
            specs[names[1]],
            shape,
            bias=specs.get("bias"),
            activation=activation,
            out=specs.get("out"),
            alpha=alpha,
            beta=beta,
            device=device,
        )

    def problem(
        self,
        operation: str,
        first: TensorSpec,
        second: TensorSpec,
        shape: Any = None,
        *,
        bias: TensorSpec | None = None,
        activation: str | None = None,
        out: TensorSpec | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        device: int = 0,
    ) -> Problem:
        """The Problem of two inputs in the arrays' own axis order, with the result's shape where that cannot be derived."""
        if beta and out is None:
            raise ValueError(f"beta: {beta} given without out; beta * out needs the array that it reads")
        one, two = self._logical(first, INPUTS[operation][0]), self._logical(second, INPUTS[operation][1])
        result = None if out is None else self._logical(out, "out")
        if operation == "forward":
            wanted: tuple[int, ...] = ask.output_shape(self.options, one.shape, two.shape)
        else:
            name = "x_shape" if operation == "backward_data" else "w_shape"
            given = out.shape if shape is None and out is not None else shape
            if given is None:
                raise TypeError(f"{name}: not given; expected the shape of the result, or out")
            wanted = ask.to_logical(checked_shape(given, name, len(one.shape)), self.options.channels_last)
        if result is None:
            dtype = "int32" if one.dtype == "int8" else one.dtype
            result = TensorSpec(wanted, dtype, ask.result_strides(wanted, ask.canonical(one, INPUTS[operation][0])))
        elif result.shape != wanted:
            raise ValueError(f"out: logical shape {result.shape} given; expected {wanted}")
        x, w, y = {
            "forward": (one, two, result),
            "backward_data": (result, two, one),
            "backward_filter": (two, result, one),
        }[operation]
        return ask.make_problem(
            self.options, operation, x, w, y, alpha=alpha, beta=beta, bias=bias, activation=activation, device=device
        )

    def _logical(self, spec: TensorSpec, name: str) -> TensorSpec:
        rank = len(spec.shape)
        if rank not in ask.CHANNELS_FIRST:
            raise ValueError(f"{name}: shape {tuple(spec.shape)} has {rank} axes; expected 3, 4 or 5")
        ask.check_layout(self.options, rank)
        strides = spec.strides if spec.strides is not None else packed_strides(spec.shape)
        if len(strides) != rank:
            raise ValueError(f"{name}: strides {strides} given for shape {tuple(spec.shape)}")
        last = self.options.channels_last
        return spec._replace(shape=ask.to_logical(spec.shape, last), strides=ask.to_logical(strides, last))

    def choose_plan(self, problem: Problem, tuner: Tuner, cap: int | None = None) -> Plan:
        """The plan that the options ask for, on the problem's device. Raises NoAlgorithmError."""
        given = self.options.algorithm
        if isinstance(given, Plan):
            if _aligned(given.problem._replace(device=problem.device)) != _aligned(problem):
                raise ValueError(
                    f"algorithm: the plan given is for another problem:\n  {given.problem}\n  not {problem}"
                )
            return given
        kind = problem.operation, problem.bias is None, problem.activation
        before = self._first.get(kind) if self.options.policy == "once" else None
        target = Target(Handle.default(problem.device))
        candidate, tried = choose(problem, self.options, target, memory.free_bytes(problem.device), tuner, before, cap)
        if candidate.engine is not None:
            self._first.setdefault(kind, candidate.engine)
        plan = Plan(problem, candidate)
        plan.candidates = tried
        return plan

    def candidates(self, problem: Problem) -> list[Candidate]:
        """Every candidate for a problem, with what the options leave out and why."""
        with on_device(problem.device):
            return survey(
                problem, self.options, Target(Handle.default(problem.device)), memory.free_bytes(problem.device)
            )


def _refuse_capture(operation: str, stream: int) -> None:
    if is_capturing(stream):
        raise CaptureError(
            f"{operation}: this signature has not been planned yet, and its stream is being captured into a CUDA graph. "
            "Call it once with arrays of the same shapes before the capture (a warm-up); the capture is intact"
        )


def _aligned(problem: Problem) -> Problem:
    """The problem with every address a multiple of 16: what it asks for, whatever the memory."""
    tensors = {name: getattr(problem, name) for name in ("x", "w", "y", "bias")}
    return problem._replace(**{name: spec and spec._replace(alignment=16) for name, spec in tensors.items()})


def _check_writable(out: Any) -> None:
    if not library_of(out, "out").writable(out):
        raise ValueError("out: a read-only array given; expected one that can be written")


def checked_shape(shape: Any, name: str, rank: int) -> tuple[int, ...]:
    """A shape as a tuple of `rank` sizes of 1 or more; TypeError or ValueError, naming the argument, for others."""
    try:
        sizes = tuple(size.__index__() for size in shape)
    except (TypeError, AttributeError):
        raise TypeError(f"{name}: {shape!r} given; expected a tuple of {rank} sizes") from None
    if len(sizes) != rank or any(size < 1 for size in sizes):
        raise ValueError(f"{name}: {sizes} given; expected {rank} sizes of 1 or more")
    return sizes
