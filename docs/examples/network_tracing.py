"""A torch.nn.Module as a graph of torch.fx: modules that cannot be traced stay whole, and one run notes shapes."""

import torch
from torch import fx
from torch.utils._pytree import tree_leaves


class Tracer(fx.Tracer):
    """Leaves modules whole that cannot be traced; `failed` is the innermost one of a trace that raised."""

    def __init__(self, whole):
        super().__init__()
        self.whole, self.failed = whole, None

    def is_leaf_module(self, m, module_qualified_name):
        return module_qualified_name in self.whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m, forward, args, kwargs):
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)
            raise


def traced(module):
    """The module as an fx.GraphModule (None if it cannot be traced), and why modules in it are left whole, by name."""
    whole: dict[str, str] = {}
    while True:
        tracer = Tracer(whole)
        try:
            return fx.GraphModule(module, tracer.trace(module)), whole
        except Exception as error:
            name = tracer.failed or ""
            whole[name] = f"cannot be traced: {first_line(error)}"
            if not name:
                return None, whole


def first_line(error):
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class Recorder(fx.Interpreter):
    """Runs the graph once; notes each tensor's shape and dtype, and which arguments' memory a result shares."""

    def run_node(self, n):
        result = super().run_node(n)
        n.meta["spec"] = (tuple(result.shape), result.dtype) if isinstance(result, torch.Tensor) else None
        mine = {address for leaf in tree_leaves(result) if (address := storage(leaf))}
        n.meta["shares"] = [
            given for given in n.all_input_nodes if mine & {storage(leaf) for leaf in tree_leaves(self.env.get(given))}
        ]
        return result


def storage(leaf):
    return leaf.untyped_storage().data_ptr() if isinstance(leaf, torch.Tensor) else 0
