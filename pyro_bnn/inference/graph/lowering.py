"""
From a recorded graph to a plain Python function that runs it.

The graph of one training step (straight-line, static shapes) is simplified and printed as Python source. What the
simplification does:

    dead code        is dropped, except for random draws, writes and what returns nothing (assertions)
    no-ops           alias, detach, a view or expand to the same layout, t of t, x + 0, x * 1, x ** 1: their input
    constants        what follows from Python's numbers alone (zeros, ones, ranges) is computed once; what depends on a
                     tensor that was there before is computed at every run, for somebody may have written to it
    repetitions      equal pure operations are computed once
    writes           an element-wise one over a result that nobody reads as it was is no write but a result of its own
    in place         an element-wise result takes the memory of an operand that nobody needs any more
    pooling          of 2 x 2 pixels is done by a kernel of this library, which gives torch's numbers to the bit

None of this changes a number: the same kernels, or one that gives the same bits, see the same operands. (a + b * c as
one addcmul would save a pass over the parameters in three places, but rounds once where the program rounds twice.)
Whatever shares memory with a tensor that the graph writes to, such as the running statistics of a BatchNorm, is left
alone.

Operations are called through torch's own Python functions where they exist, for they are called in half the time of
`torch.ops`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

import torch
from torch import Tensor, fx
from torch.fx import Node

from pyro_bnn.inference.graph.recording import Look, NotRecordable, Recorder, look, written_arguments
from pyro_bnn.inference.native import mean_field as native
from pyro_bnn.inference.native.max_pool import max_pool, takes_windows

__all__ = ["Lowered", "lower"]

aten = torch.ops.aten

Key: TypeAlias = Any

_MAX_CONSTANT = 1 << 24  # elements of a tensor that is worth keeping between steps
_MAX_FILLED = 1 << 16
_LITERAL = 4  # a longer list of numbers is made once

_SAME = {aten.alias.default, aten.detach.default, aten.lift_fresh.default}
_LAYOUT = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.reshape.default}
_INVOLUTIONS = {aten.t.default, aten.neg.default}
_FILLED: dict[Any, float | None] = {  # the number they are filled with; None: their last argument
    aten.ones_like.default: 1.0,
    aten.new_ones.default: 1.0,
    aten.zeros_like.default: 0.0,
    aten.new_zeros.default: 0.0,
    aten.new_full.default: None,
    aten.full_like.default: None,
}
_FACTORIES = {
    aten.ones.default,
    aten.zeros.default,
    aten.full.default,
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.scalar_tensor.default,
    aten.eye.default,
    aten.eye.m,
    aten.linspace.default,
}
_NEUTRAL: dict[Any, tuple[float, bool]] = {  # the constant that changes nothing, and whether it may stand on the left
    aten.add.Tensor: (0.0, True),
    aten.sub.Tensor: (0.0, False),
    aten.mul.Tensor: (1.0, True),
    aten.mul.Scalar: (1.0, False),
    aten.div.Tensor: (1.0, False),
    aten.pow.Tensor_Scalar: (1.0, False),
}

_POOLED = native.DRAW  # its results lie in memory that the next run uses again
_MAPPED = 1 << 23
"""A float32 product of so many numbers, 32 MB, would be fetched from the system anew, page by page, in every run."""

# Functions with torch's fast argument parser that take the same positional arguments.
_FAST: dict[Any, Callable[..., Any]] = {
    aten.add.Tensor: torch.add,
    aten.add.Scalar: torch.add,
    aten.addcmul.default: torch.addcmul,
    aten.abs.default: torch.abs,
    aten.addmm.default: torch.addmm,
    aten.amax.default: torch.amax,
    aten.atanh.default: torch.atanh,
    aten.bmm.default: torch.bmm,
    aten.cat.default: torch.cat,
    aten.clamp_min.default: torch.clamp_min,
    aten.clone.default: torch.clone,
    aten.convolution.default: torch.convolution,
    aten.div.Tensor: torch.div,
    aten.exp.default: torch.exp,
    aten.expand.default: Tensor.expand,
    aten.expm1.default: torch.expm1,
    aten.gather.default: torch.gather,
    aten.index_select.default: torch.index_select,
    aten.log.default: torch.log,
    aten.log1p.default: torch.log1p,
    aten.logsumexp.default: torch.logsumexp,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.mul.Scalar: torch.mul,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.reciprocal.default: torch.reciprocal,
    aten.relu.default: torch.relu,
    aten.scatter_add.default: torch.scatter_add,
    aten.sigmoid.default: torch.sigmoid,
    aten.softplus.default: torch.nn.functional.softplus,
    aten.split_with_sizes.default: torch.split_with_sizes,
    aten.squeeze.dim: torch.squeeze,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.view.default: Tensor.view,
    aten.where.self: torch.where,
    native.DRAW: native.draw,
    native.GRADIENTS: native.gradients,
    native.OUTPUTS: native.outputs,
}


def _over(with_out: Any) -> Callable[..., Tensor]:
    """Return an operation on a gradient that puts its result where the gradient lies."""

    def over(grad_output: Tensor, *args: Any) -> Tensor:
        return cast(Tensor, with_out(grad_output, *args, grad_input=grad_output))

    return over


_IN_PLACE: dict[
    Any, tuple[Callable[..., Any], tuple[int, ...]]
] = {  # in-place twin, and which operands it may overwrite
    aten.add.Tensor: (Tensor.add_, (0, 1)),
    aten.sub.Tensor: (Tensor.sub_, (0,)),
    aten.mul.Tensor: (Tensor.mul_, (0, 1)),
    aten.div.Tensor: (Tensor.div_, (0,)),
    aten.addcmul.default: (Tensor.addcmul_, (0,)),
    aten.relu.default: (Tensor.relu_, (0,)),
    aten.exp.default: (Tensor.exp_, (0,)),
    aten.log.default: (Tensor.log_, (0,)),
    aten.neg.default: (Tensor.neg_, (0,)),
    aten.tanh.default: (Tensor.tanh_, (0,)),
    aten.abs.default: (Tensor.abs_, (0,)),
    aten.atanh.default: (Tensor.atanh_, (0,)),
    aten.reciprocal.default: (Tensor.reciprocal_, (0,)),
    aten.sigmoid.default: (Tensor.sigmoid_, (0,)),
    aten.sqrt.default: (Tensor.sqrt_, (0,)),
    aten.sigmoid_backward.default: (_over(aten.sigmoid_backward.grad_input), (0,)),
    aten.tanh_backward.default: (_over(aten.tanh_backward.grad_input), (0,)),
    aten.threshold_backward.default: (_over(aten.threshold_backward.grad_input), (0,)),
}
_RESULT_OF_ITS_OWN = {  # an element-wise write, and the operation whose result it writes
    getattr(getattr(aten, f"{operation._schema.name.removeprefix('aten::')}_"), operation._overloadname): operation
    for operation in _IN_PLACE
    if "backward" not in operation._schema.name
}


def _schema(node: Node) -> Any:
    return getattr(node.target, "_schema", None)


def _inputs(node: Node) -> list[Node]:
    return list(node.all_input_nodes)


def _look(node: Node) -> Look | None:
    return node.meta.get("look")


def _tags(node: Node) -> Sequence[Any]:
    return getattr(node.target, "tags", ())


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in _tags(node)


def _returns_nothing(node: Node) -> bool:
    """Return whether an operation is there for what it does, as an assertion is."""
    schema = _schema(node)
    return schema is not None and not schema.returns


def _viewed(node: Node) -> Node | None:
    """Return the node whose memory the result of this node lies in, if it is a view or written in place."""
    if node.op != "call_function":
        return None
    schema = _schema(node)
    if schema is None:  # getitem: part of a tuple, or of a list of views
        return node.args[0] if isinstance(node.args[0], Node) else None
    if any(r.alias_info is not None for r in schema.returns) and node.args and isinstance(node.args[0], Node):
        return node.args[0]
    return None


def base_of(node: Node) -> Node:
    """Return the node that owns the memory of this node's result."""
    while True:
        below = _viewed(node)
        if below is None:
            return node
        if _schema(node) is None and _viewed(below) is None:  # an own output of an operation with several
            return node
        node = below


def _check_static(node: Node) -> None:
    tags = _tags(node)
    if torch.Tag.data_dependent_output in tags:
        raise NotRecordable(f"{node.target} takes a value out of a tensor")
    if torch.Tag.dynamic_output_shape not in tags:
        return
    if node.target is aten.index.Tensor:
        indices = [i for i in node.args[1] if isinstance(i, Node)]  # type: ignore[union-attr]
        looks = [_look(i) for i in indices]
        if all(found is not None and found.dtype not in (torch.bool, torch.uint8) for found in looks):
            return
    raise NotRecordable(f"the shape of the result of {node.target} depends on the data")


@final
class _WorkingCopy:
    """The graph with what the passes need to know: constants by node, and which memory is written to."""

    def __init__(self, graph: fx.Graph, constants: dict[Node, Tensor], fixed: set[Node]) -> None:
        self.graph = graph
        self.constants: dict[Node, Any] = dict(constants)
        self._undo_writes()
        self.written: set[Node] = set()
        for node in graph.nodes:
            if node.op == "call_function":
                _check_static(node)
                for argument in written_arguments(node.target, node.args, node.kwargs):
                    self.written.add(base_of(argument))
        self.folded = fixed - self.written  # constants that keep their values: what comes of them is computed once

    def tainted(self, node: Node) -> bool:
        return base_of(node) in self.written

    def pure(self, node: Node) -> bool:
        """Return whether the node computes a function of its inputs and does nothing else."""
        return (
            node.op == "call_function"
            and not _is_random(node)
            and not _returns_nothing(node)
            and not written_arguments(node.target, node.args, node.kwargs)
            and not self.tainted(node)
            and not any(self.tainted(i) for i in _inputs(node))
        )

    def replace(self, node: Node, other: Node) -> None:
        node.replace_all_uses_with(other)
        self.graph.erase_node(node)

    # -- passes ------------------------------------------------------------------------------------------------

    def _undo_writes(self) -> None:
        """Let a write over a result that is not read as it was be a result of its own, as `relu(x, inplace=True)`."""
        place = {node: i for i, node in enumerate(self.graph.nodes)}
        sharing: dict[Node, list[Node]] = {}  # the nodes whose results lie in the memory of one
        for node in self.graph.nodes:
            sharing.setdefault(base_of(node), []).append(node)
        for node in self.graph.nodes:
            x = node.args[0] if node.target in _RESULT_OF_ITS_OWN else None
            if not isinstance(x, Node) or x.op != "call_function" or base_of(x) is not x:
                continue
            before = [other for other in sharing[x] if place[other] < place[node]]
            read_later = any(place[user] > place[node] for other in before for user in other.users)
            if not read_later and all(_same_layout(x, i) for i in _inputs(node)):
                node.target = _RESULT_OF_ITS_OWN[node.target]
                sharing[node] = [other for other in sharing[x] if place[other] >= place[node]]
                sharing[x] = before

    def drop_dead_code(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node.op in ("placeholder", "output") or node.users:
                continue
            if node.op == "get_attr" or not (
                _is_random(node) or _returns_nothing(node) or written_arguments(node.target, node.args, node.kwargs)
            ):
                self.graph.erase_node(node)
                self.constants.pop(node, None)

    def fold(self) -> None:
        """Compute once what comes of Python's numbers, and of constants that keep their values."""
        for node in list(self.graph.nodes):
            if not self.pure(node):
                continue
            found = _look(node)
            if found is not None and found.numel > _MAX_CONSTANT:
                continue
            if node.target in _FILLED and found is not None and found.numel <= _MAX_FILLED:
                number = _FILLED[node.target]
                number = node.args[-1] if number is None else number
                if isinstance(number, (int, float)):
                    filled = torch.full(found.shape, number, dtype=found.dtype, device=found.device)
                    self._constant(node, filled)
                    continue
            inputs = _inputs(node)
            if inputs or node.target in _FACTORIES:
                if not all(i in self.folded for i in inputs):
                    continue
                with torch.no_grad():
                    args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.constants.__getitem__)
                    result = cast(Any, node.target)(*args, **kwargs)
                self._constant(node, result)

    def _constant(self, node: Node, value: Any) -> None:
        with self.graph.inserting_before(node):
            constant = self.graph.create_node("get_attr", "folded")
        constant.meta["look"] = look(value) if isinstance(value, Tensor) else None
        self.constants[constant] = value
        self.folded.add(constant)
        self.replace(node, constant)

    def drop_no_ops(self) -> None:
        for node in list(self.graph.nodes):
            if node.op != "call_function" or (self.tainted(node) and node.target not in _SAME):
                continue
            source = node.args[0] if node.args and isinstance(node.args[0], Node) else None
            if source is None:
                continue
            if node.target in _SAME or (node.target in _LAYOUT and _same_layout(node, source)):
                self.replace(node, source)
            elif node.target in _INVOLUTIONS and source.target is node.target and self.pure(source):
                self.replace(node, source.args[0])  # type: ignore[arg-type]
            elif node.target in _NEUTRAL and self.pure(node):
                self._drop_neutral(node)

    def _drop_neutral(self, node: Node) -> None:
        neutral, either_side = _NEUTRAL[node.target]
        if node.kwargs or len(node.args) != 2:
            return
        for kept, other in ((0, 1), (1, 0)) if either_side else ((0, 1),):
            x, c = node.args[kept], node.args[other]
            if isinstance(x, Node) and self._is_filled(c, neutral) and _same_layout(node, x):
                self.replace(node, x)
                return

    def _is_filled(self, argument: Any, number: float) -> bool:
        if isinstance(argument, (int, float)):
            return argument == number
        value = self.constants.get(argument) if argument in self.folded else None
        return isinstance(value, Tensor) and bool((value == number).all())

    def shrink_uniform(self) -> None:
        """Read one number instead of a vector of equal ones."""
        for node in list(self.graph.nodes):
            if node.target not in _NEUTRAL or not self.pure(node):
                continue
            for i, other in ((0, 1), (1, 0)):
                c, x = node.args[i], node.args[other]
                if not (isinstance(c, Node) and isinstance(x, Node)) or c not in self.folded or x in self.constants:
                    continue
                value, of_x, of_result = self.constants[c], _look(x), _look(node)
                if value.dim() == 0 or of_x is None or of_result is None or of_x.shape != of_result.shape:
                    continue
                if value.numel() and bool((value == value.reshape(-1)[0]).all()):
                    with self.graph.inserting_before(node):
                        single = self.graph.create_node("get_attr", "single")
                    self.constants[single] = value.reshape(-1)[0].clone()
                    self.folded.add(single)
                    single.meta["look"] = look(self.constants[single])
                    node.update_arg(i, single)

    def share(self) -> None:
        """Compute equal pure operations once."""
        seen: dict[Key, Node] = {}
        for node in list(self.graph.nodes):
            if not self.pure(node):
                continue
            key = (node.target, _frozen(node.args), _frozen(node.kwargs))
            first = seen.setdefault(key, node)
            if first is not node:
                self.replace(node, first)

    def owns(self, result: Node, results: Sequence[Node], layout: tuple[int, ...] | None) -> bool:
        """Return whether a result's memory is its own and laid out as wanted, so that the caller may keep it."""
        base, found = base_of(result), _look(result)
        if (
            base.op != "call_function"
            or _is_pooled(base)
            or base in self.written
            or base in self.constants
            or found is None
        ):
            return False
        return (layout is None or found.stride == layout) and sum(base_of(r) is base for r in results) == 1

    # -- printing ----------------------------------------------------------------------------------------------

    def emit(self, inputs: Sequence[Node], results: Sequence[Node]) -> tuple[str, dict[str, Any], int]:
        names: dict[Node, str] = {}
        scope: dict[str, Any] = {}
        functions: dict[Any, str] = {}
        for i, node in enumerate(inputs):
            names[node] = f"x{i}"
        last: dict[Node, Node] = {}
        kept = {base_of(r) for r in results}
        for node in self.graph.nodes:
            for source in _inputs(node):
                last[source] = node
        free: dict[Node, list[Node]] = {}
        for node, user in last.items():
            free.setdefault(user, []).append(node)
        alive: dict[Node, int] = {}  # values that still lie in a base's memory
        lines = []
        operations = 0
        for k, node in enumerate(self.graph.nodes):
            if node in self.constants:
                names[node] = f"c{k}"
                scope[f"c{k}"] = self.constants[node]
                continue
            if node.op != "call_function":
                continue
            names[node] = f"v{k}"
            alive[base_of(node)] = alive.get(base_of(node), 0) + 1
            dying = [n for n in free.get(node, []) if n in alive or base_of(n) in alive]
            operations += 1
            call = self._call(node, names, functions, scope, dying, alive, kept)
            lines.append(f"{names[node]} = {call}" if node.users else call)
            if not node.users:
                alive[base_of(node)] -= 1
            gone = [n for n in free.get(node, []) if n not in self.constants and n.op == "call_function"]
            for n in gone:
                alive[base_of(n)] -= 1
            if gone:
                lines.append("del " + ", ".join(names[n] for n in gone))
        returned = ", ".join(names[r] for r in results)
        arguments = ", ".join(names[n] for n in inputs)
        body = "\n    ".join([*lines, f"return ({returned},)"])
        return f"def step({arguments}):\n    {body}\n", scope, operations

    def pair(self, results: Sequence[Node]) -> dict[int, Tensor]:
        """Return which results are the gradients of loc and rho as the kernel makes them, and loc and rho; or none."""
        calls = [node for node in self.graph.nodes if node.target is native.GRADIENTS]
        if len(calls) != 1:
            return {}
        leaves = [self.constants.get(argument) for argument in calls[0].args[2:4]]
        found: dict[int, Tensor] = {}
        for part in calls[0].users:
            places = [i for i, result in enumerate(results) if result is part]
            leaf = leaves[part.args[1]]
            if len(places) != 1 or len(part.users) != 1 or leaf is None:
                return {}
            found[places[0]] = leaf
        return found if len(found) == 2 else {}

    def _call(
        self,
        node: Node,
        names: Mapping[Node, str],
        functions: dict[Any, str],
        scope: dict[str, Any],
        dying: Sequence[Node],
        alive: Mapping[Node, int],
        kept: set[Node],
    ) -> str:
        if _schema(node) is None:  # getitem
            return f"{names[node.args[0]]}[{node.args[1]!r}]"  # type: ignore[index]
        target: Any = node.target
        if _is_wide_gradient(node):
            scope["product"] = native.product
            return f"product({names[node]!r}, {', '.join(_source(a, names, scope) for a in node.args)})"
        if _is_pooling(node):
            scope["max_pool"] = max_pool
            return f"max_pool({_source(node.args[0], names, scope)})"
        function: Any = _FAST.get(target, getattr(target, "_op", target))
        args = [_source(a, names, scope) for a in node.args]
        kwargs = {k: _source(v, names, scope) for k, v in node.kwargs.items()}
        if target in _IN_PLACE and self.pure(node):
            twin, operands = _IN_PLACE[target]
            for i in operands if not kwargs else operands[:1]:  # a + b is b + a, but a + alpha b is not
                if self._may_overwrite(node, node.args[i], dying, alive, kept):
                    function, args = twin, args if i == 0 else args[::-1]
                    break
        if function not in functions:
            name = target._schema.name.partition("::")[2] + ("_" if function not in (_FAST.get(target), target) else "")
            while name in scope:
                name += "_"
            functions[function] = name
            scope[name] = function
        called = [*args, *(f"{k}={v}" for k, v in kwargs.items())]
        return f"{functions[function]}({', '.join(called)})"

    def _may_overwrite(
        self, node: Node, operand: Any, dying: Sequence[Node], alive: Mapping[Node, int], kept: set[Node]
    ) -> bool:
        if not isinstance(operand, Node) or operand not in dying or operand.op != "call_function":
            return False
        base = base_of(operand)
        if _is_pooled(base):
            return False
        own = base is operand and alive.get(base) == 1 and base not in kept and not self.tainted(operand)
        return own and _same_layout(node, operand) and not _overlaps_itself(operand)


def _is_wide_gradient(node: Node) -> bool:
    """Return whether a node is a large product that goes into the gradients of loc and rho, and nowhere else."""
    found = _look(node)
    if node.target is not aten.mm.default or found is None or found.numel < _MAPPED or node.kwargs:
        return False
    plain = found.dtype is torch.float32 and found.device.type == "cpu"
    return plain and [user.target for user in node.users] == [native.GRADIENTS]


def _is_pooling(node: Node) -> bool:
    """Return whether the compiled kernel does a pooling of images."""
    if node.target is not aten.max_pool2d_with_indices.default or node.kwargs:
        return False
    looks = [_look(other) for other in (cast(Node, node.args[0]), *node.users)]
    if any(found is None or not _is_contiguous(found) or found.device.type != "cpu" for found in looks):
        return False
    images = cast(Look, looks[0])
    return images.dtype is torch.float32 and takes_windows(images.shape, node.args[1:])


def _is_contiguous(found: Look) -> bool:
    return found.stride == tuple(math.prod(found.shape[i + 1 :]) for i in range(len(found.shape)))


def _is_pooled(base: Node) -> bool:
    """Return whether a node's memory is used again by the next run."""
    parts = [base, *(n for n in base.all_input_nodes if _schema(base) is None)]
    return any(part.target is _POOLED for part in parts)


def _overlaps_itself(node: Node) -> bool:
    found = _look(node)
    return found is None or any(s == 0 and n > 1 for n, s in zip(found.shape, found.stride, strict=True))


def _same_layout(a: Node, b: Node) -> bool:
    return _look(a) is not None and _look(a) == _look(b)


def _frozen(value: Any) -> Key:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in value.items())
    return (type(value), value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _source(value: Any, names: Mapping[Node, str], scope: dict[str, Any]) -> str:
    if isinstance(value, Node):
        return names[value]
    if isinstance(value, (list, tuple)) and (len(value) <= _LITERAL or not all(map(_is_number, value))):
        return "[" + ", ".join(_source(v, names, scope) for v in value) + "]"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    name = f"k{len(scope)}"
    scope[name] = value
    return name


@final
class Lowered:
    """A recorded step as a Python function of its inputs."""

    def __init__(
        self,
        source: str,
        scope: dict[str, Any],
        operations: int,
        copies: dict[int, tuple[int, ...] | None],
        pair: dict[int, Tensor],
    ) -> None:
        self.source = source
        self.pair = pair
        """The results that are the two gradients of :mod:`pyro_bnn.inference.native`, and nothing else; and of what."""
        self.operations = operations
        self._copies = copies
        exec(compile(source, "<recorded step>", "exec"), scope)
        self._step = scope["step"]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the step; every result owns its memory."""
        results = list(self._step(*inputs))
        for i, layout in self._copies.items():
            result = results[i]
            if layout is None:
                results[i] = result.clone(memory_format=torch.contiguous_format)
            else:
                results[i] = torch.empty_strided(result.shape, layout, dtype=result.dtype, device=result.device)
                results[i].copy_(result)
        return results


def lower(
    recorder: Recorder,
    bound: Mapping[int, Tensor],
    layouts: Sequence[tuple[int, ...] | None] | None = None,
    *,
    fixed: bool = False,
) -> Lowered:
    """
    Simplify and print a recording; it is used up.

    :param bound: the inputs that stay the same tensor from step to step, by position; they are read where they lie.
    :param fixed: whether tensors that were there before the recording keep their values as long as it is used.
    :param layouts: for each result the strides it must have, or None; default any.
    """
    graph = recorder.graph
    constants = {**recorder.constants, **{recorder.inputs[i]: tensor for i, tensor in bound.items()}}
    work = _WorkingCopy(graph, constants, set(recorder.constants) if fixed else set())
    work.drop_dead_code()
    for _ in range(2):
        work.drop_no_ops()
        work.share()
        work.fold()
    work.shrink_uniform()
    work.drop_no_ops()
    work.share()
    work.drop_dead_code()
    output = next(n for n in graph.nodes if n.op == "output")
    results = list(cast(Any, output.args[0]))
    wanted = layouts or [None] * len(results)
    copies = {i: s for i, (r, s) in enumerate(zip(results, wanted, strict=True)) if not work.owns(r, results, s)}
    pair = work.pair(results)
    pair = {} if any(i in copies for i in pair) else pair
    source, scope, operations = work.emit([n for i, n in enumerate(recorder.inputs) if i not in bound], results)
    return Lowered(source, scope, operations, copies, pair)
