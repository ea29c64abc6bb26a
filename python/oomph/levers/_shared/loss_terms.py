"""How a loss reduces over its samples, read from the end of the autograd graph.

A loss of a batch is a sum of terms, each a mean or a sum over samples, tokens or elements. The weight
of a micro-batch's mean is its share of the batch's samples (or tokens,
if targets are ignored): its *count* is what it divided by. The graph has all of this: which
reduction ran, over how many elements, and which targets a cross-entropy left out.

A custom `autograd.Function` can declare it too: set `ctx.loss_reduction` to "mean" or "sum", and for a
mean `ctx.loss_count` to the number or 0-dim tensor it divided by.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from oomph.levers._shared.deferred_rows import node as node_of

if TYPE_CHECKING:
    from oomph.levers._shared.base import Lever

MEAN, SUM = 1, 2
"""`_saved_reduction`, as ATen has it."""

THROUGH = frozenset(
    [
        "Add",
        "Sub",
        "Neg",
        "Mul",
        "Div",
        "ToCopy",
        "Clone",
        "Alias",
        "View",
        "Reshape",
        "UnsafeView",
        "Squeeze",
        "Unsqueeze",
        "Select",
        "Stack",
        "Cat",
        "Expand",
        "Permute",
        "T",
        "Identity",
        "Slice",
        "Index",
        "Nansum",
        "Where",
        "NanToNum",
    ]
)
"""Nodes that are linear in one scalar, by their names without `Backward` and number."""

NONLINEAR = frozenset(
    [
        "Sqrt",
        "Rsqrt",
        "Exp",
        "Log",
        "Log1P",
        "Pow",
        "Abs",
        "Clamp",
        "ClampMin",
        "ClampMax",
        "Max",
        "Min",
        "Maximum",
        "Minimum",
        "Amax",
        "Amin",
        "Logsumexp",
        "LinalgVectorNorm",
        "Norm",
        "Sigmoid",
        "LogSigmoid",
        "Tanh",
        "Relu",
        "Softplus",
        "Reciprocal",
        "Var",
        "Std",
        "VarMean",
        "StdMean",
        "Prod",
        "Median",
        "Dist",
    ]
)
"""Scalars of a batch that are not sums over its micro-batches."""


ELEMENTWISE = (THROUGH | NONLINEAR) - {"Stack", "Cat", "View", "Reshape", "UnsafeView", "Permute"}
"""Nodes whose results have the shape of what they come from, mostly."""
LOOKUPS = frozenset(["Embedding", "EmbeddingBag", "Gather", "Index", "IndexSelect"])
"""Nodes that take rows of a parameter by indices, which are data."""
NEAR = 64
"""Nodes between a reduction to one value and one over samples."""


class Inseparable(ValueError):
    """The loss of a batch cannot be computed from its micro-batches; the message says why."""


@dataclass
class Term:
    """One reduction in a loss."""

    node: Any
    """Its node in the graph."""
    count: Any
    """What a mean divided by, a number or a tensor without dimensions; None for a sum over samples;
    `PARAMETERS` for a term without data."""
    guard: Any = None
    """The node that gets what was divided by `count`, which may be zero."""
    divisor: Any = None
    """What a mean is divided by beside its own count."""
    single: bool = False
    """Whether it is the loss of one sample of several."""


PARAMETERS = "parameters"
SAMPLES = "samples"
"""A count that is exactly the number of samples."""


def terms(
    loss: torch.Tensor, batch: Any, outputs: list[Any], assume: Callable[[str], None]
) -> list[Term]:
    """The terms of a scalar `loss` over `batch.size` of `batch.whole` samples.

    `batch.constant` is a divisor that counts all of them, if one is known. `outputs` are the graph
    nodes of the model's outputs, which distinguish data from parameters; `assume` is called with
    each assumption. `batch.divided` are numbers by which a framework divides any loss, the last first.
    Raises `Inseparable`.
    """
    node = loss.grad_fn
    if node is None:
        return []
    for number in batch.divided:
        inner = (
            _only(node) if _name(node) == "Mul" else node
        )  # a GradScaler's scale is outside of it
        if inner is not None and _name(inner) == "Div" and _saved_divisor(inner) == number:
            node = _only(inner)
    reader = _Reader(batch, outputs, assume)
    reader.read(node, divisor=None, below=False)
    reader.join_samples()
    return reader.found


class _Reader:
    def __init__(self, batch: Any, outputs: list[Any], assume: Any) -> None:
        self.part, self.whole, self.constant = batch.size, batch.whole, batch.constant
        self.outputs, self.assume = set(outputs), assume
        self.found: list[Term] = []
        self.seen: set[Any] = set()

    def read(self, node: Any, divisor: Any, below: bool, top: Any = None) -> None:
        """`divisor` divides what comes below; `top` is the node whose gradient the term gets."""
        # Deep chains of additions (a loss a sample) would exceed Python's recursion.
        waiting = [(node, divisor, below, top)]
        while waiting:
            node, divisor, below, top = waiting.pop()
            if node in self.seen:
                continue
            self.seen.add(node)
            below = below or node in self.outputs
            name = _name(node)
            scalar = _elements(node) == 1
            children = [child for child, _ in node.next_functions if child is not None]
            if hasattr(node, "loss_reduction"):
                count = node.loss_count if node.loss_reduction == "mean" else None
                self._add(top or node, count, divisor, _elements_in(node))
            elif hasattr(node, "_saved_reduction") and scalar:
                self._reduction(node, name, divisor, top or node)
            elif name == "AccumulateGrad":
                self.found.append(Term(top or node, PARAMETERS))
            elif name in ("Mean", "Sum") and scalar:
                inner = children[0] if children else None
                if not below and self._of_parameters(node):
                    self.found.append(Term(top or node, PARAMETERS))
                elif inner is not None and _name(inner) in ("Stack", "Cat"):
                    self._stacked(node, name, inner, divisor, below, top, waiting)
                elif (earlier := self._over_samples(inner)) is not None:
                    mean = _name(earlier) == "Mean"
                    count = _reduced(earlier) if mean else None
                    self._add(top or node, count, divisor, _reduced(earlier), earlier)
                elif name == "Mean":
                    self._add(top or node, _elements_in(node), divisor, 0, node)
                else:
                    self._add(top or node, None, divisor, _elements_in(node), node)
            elif name == "Div" and scalar:
                other = _saved_divisor(node)
                if other is None:
                    raise Inseparable("it divides one part of the loss by another")
                top = top or node
                divisor = other if divisor is None else self._both(divisor, other)
                waiting += [(child, divisor, below, top) for child in children]
            elif name in THROUGH and (scalar or name in ("Stack", "Cat")):
                if name == "Mul" and _edges(node) > 1:
                    self._product(node, children, divisor, below, top, waiting)
                else:
                    # From an addition on, terms are separate, but for those with one learned weight.
                    learned = top is not None and _name(top) == "Mul" and _edges(top) > 1
                    keep = top if len(children) == 1 or learned else None
                    waiting += [(child, divisor, below, keep) for child in children]
            elif not below and self._of_parameters(node):
                self.found.append(Term(top or node, PARAMETERS))
            elif name in NONLINEAR:
                raise Inseparable(
                    f"its loss takes {node.name().removesuffix('0').removesuffix('Backward')} of a value of the whole batch, "
                    "which is not a sum over micro-batches"
                )
            else:
                self.assume(
                    f"how {node.name()} reduces over samples is unknown: assumed to be a mean over them"
                )
                self._add(top or node, self.part, None, 0)

    def _stacked(self, node, name, inner, divisor, below, top, waiting) -> None:
        """A reduction of scalars that were stacked: of one loss a sample, or of several losses."""
        pieces = [child for child, _ in inner.next_functions if child is not None]
        if not pieces or any(_elements(piece) != 1 for piece in pieces):
            return self._add(
                top or node,
                _elements_in(node) if name == "Mean" else None,
                divisor,
                _elements_in(node),
            )
        if name == "Mean" and len(pieces) == self.part:
            divisor = float(len(pieces))  # the losses of samples, perhaps
        waiting += [(piece, divisor, below, top) for piece in pieces]
        return None

    def _over_samples(self, node: Any) -> Any:
        """The reduction over samples, and not over all else, that the vector from `node` comes from; None without
        one. Raises `Inseparable` if what is between them is no sum."""
        linear, waiting = True, [node]
        seen: set[Any] = set()
        while waiting and len(seen) < NEAR:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            name = _name(node)
            if name in ("Mean", "Sum") and _takes_samples(node, self.part):
                if not linear:
                    raise Inseparable(
                        f"it takes a {name.lower()} over the samples and computes with it: the result is none over "
                        "micro-batches"
                    )
                return node
            shape = torch.Size(_output_shape(node))
            if node in self.outputs or (
                len(shape) > 1 and shape[0] % self.part == 0 and name not in ELEMENTWISE
            ):
                continue
            linear = linear and name in THROUGH and _edges(node) < 2 and not _has_factors(node)
            waiting += [child for child, _ in node.next_functions]
        return None

    def _product(self, node, children, divisor, below, top, waiting) -> None:
        """A loss with a learned weight; two losses multiplied are no sum."""
        data = [child for child in children if below or not self._of_parameters(child)]
        if len(data) > 1:
            raise Inseparable("it multiplies two parts of the loss")
        waiting += [(child, divisor, below, top or node) for child in data or children[:1]]

    def _reduction(self, node: Any, name: str, divisor: Any, top: Any) -> None:
        reduction = node._saved_reduction
        if reduction == SUM:
            self._add(top, None, divisor, _elements_in(node), node)
        elif name in ("NllLoss", "NllLoss2D", "NllLossNd"):
            self._add(top, _targets(node), divisor, 0, node)
        else:
            self._add(top, _elements_in(node), divisor, 0, node)

    def _add(self, node, count, divisor, elements: int, divided: Any = None) -> None:
        """A term; a sum (`divided`) over a divisor is a mean if that counts what was summed."""
        guard = None
        single = divided is not None and _of_one_sample(divided, self.part)
        if single:
            self.found.append(Term(node, count, None, divisor, single))
            return
        if count is None and divisor is not None:
            count = self._divisor(divisor, elements)
            guard = divided if isinstance(count, torch.Tensor) else None
        self.found.append(Term(node, count, guard))

    def join_samples(self) -> None:
        """Losses of single samples that were added up are a sum or a mean over samples."""
        single = [term for term in self.found if term.single]
        if not single:
            return
        numbers = [term.divisor for term in single if not isinstance(term.divisor, torch.Tensor)]
        divisors = {math.prod(one) if isinstance(one, tuple) else one for one in numbers}
        if len(single) != self.part or len(divisors) != 1:
            raise Inseparable("it takes the losses of some samples one by one")
        divisor = divisors.pop()
        if divisor not in (None, 1.0, float(self.part), float(self.whole)):
            raise Inseparable(f"it divides the losses of its samples by {divisor:g}")
        mean = divisor == self.part != self.whole and divisor is not None
        for term in single:
            term.count = SAMPLES if mean else None

    def _both(self, outer: Any, inner: Any) -> Any:
        """The divisor of what is divided twice: what counts something, or a tuple of numbers."""
        if self._is_constant(inner) or self._is_constant(outer):
            return inner if self._is_constant(inner) else outer
        counts = [one for one in (outer, inner) if isinstance(one, torch.Tensor)]
        if counts:
            return counts[0]
        return (*(outer if isinstance(outer, tuple) else (outer,)), inner)

    def _is_constant(self, divisor: Any) -> bool:
        """Whether it is the one that counts the whole batch."""
        constant = self.constant
        if constant is None or isinstance(divisor, tuple):
            return False
        if isinstance(divisor, torch.Tensor):
            known = isinstance(constant, torch.Tensor)
            return known and divisor.data_ptr() == constant.data_ptr()
        return divisor == float(constant)

    def _divisor(self, divisor: Any, elements: int) -> Any:
        """What a divided sum is a mean over; None if the divisor is a constant."""
        if isinstance(divisor, tuple):
            # By samples and by tokens, or by one of them and a constant.
            product = float(math.prod(divisor))
            for one in (product, *divisor):
                with contextlib.suppress(Inseparable):
                    return self._divisor(one, elements)
            divisor = product
        if self._is_constant(divisor):
            return None
        if isinstance(divisor, torch.Tensor):
            return divisor
        if divisor in (self.part, elements) and divisor != self.whole:
            return divisor
        if divisor in (1, self.whole):
            return None
        whole = elements // self.part * self.whole if elements % self.part == 0 else 0
        if divisor == whole:
            return None
        if divisor % self.part == 0 and elements and elements % divisor == 0:
            return divisor
        raise Inseparable(
            f"it divides the sum of its loss by {divisor:g}, which is neither the number of samples nor of "
            f"elements that the micro-batch has ({self.part}, {elements})"
        )

    def _of_parameters(self, node: Any) -> bool:
        """Whether neither an output of the model nor other data is in what `node` came from."""
        if not self.outputs:
            return False
        queue, seen = deque([node]), {node}
        while queue:
            current = queue.popleft()
            if current in self.outputs or _takes_data(current):
                return False
            for child, _ in current.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    queue.append(child)
        return True


def _takes_data(node: Any) -> bool:
    """Whether an operation on parameters takes a tensor without gradients, other than a constant of their shape."""
    name = _name(node)
    if name in LOOKUPS:
        return True
    children = [child for child, _ in node.next_functions]
    if None not in children or not any(children):
        return False
    known = max(torch.Size(_output_shape(child)).numel() for child in children if child is not None)
    return name not in ELEMENTWISE or torch.Size(_output_shape(node)).numel() > known


def _output_shape(node: Any) -> Any:
    try:
        return node._input_metadata[0].shape
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return ()


def _dimensions(node: Any, shape: torch.Size) -> list[int]:
    """The dimensions that a Mean or Sum reduces of its input."""
    dims = getattr(node, "_saved_dim", None)
    if dims is None:
        return []
    # They are shown unsigned.
    return [(dim - (1 << 64) if dim >= 1 << 63 else dim) % len(shape) for dim in dims]


def _takes_samples(node: Any, part: int) -> bool:
    """Whether a Mean or Sum reduces the dimension of the samples, but not all: a vector is left."""
    shape, left = _sizes_in(node), _output_shape(node)
    if not shape or torch.Size(left).numel() == 1 or 0 not in _dimensions(node, shape):
        return False
    return shape[0] % part == 0 and (not left or left[0] != part or len(left) == 1)


def _reduced(node: Any) -> int:
    """Over how many entries a Mean or Sum of some dimensions is."""
    shape = _sizes_in(node)
    return math.prod(shape[dim] for dim in _dimensions(node, shape))


def _sizes_in(node: Any) -> torch.Size:
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return _shape_in(node) if sizes is None else torch.Size(sizes)


def _has_factors(node: Any) -> bool:
    """Whether it multiplies by a tensor that may follow from the samples; or divides by one."""
    others = (getattr(node, f"_saved_{name}", None) for name in ("self", "other"))
    return any(isinstance(other, torch.Tensor) and other.numel() > 1 for other in others)


def _of_one_sample(node: Any, part: int) -> bool:
    """Whether what `node` reduces was picked from a tensor of `part` samples."""
    for _ in range(8):
        children = [child for child, _ in node.next_functions if child is not None]
        if not children:
            return False
        node = children[0]
        if _name(node) in ("Select", "Unbind") and getattr(node, "_saved_dim", -1) == 0:
            shape = getattr(node, "_saved_self_sym_sizes", None) or _shape_in(node)
            return bool(shape) and shape[0] == part
    return False


def _name(node: Any) -> str:
    """`MulBackward1` → `Mul`."""
    name = node.name().rpartition("::")[2]
    return name.partition("Backward")[0] or name


def _only(node: Any) -> Any:
    """The node that its only input with gradients came from; None if there are others."""
    children = [child for child, _ in node.next_functions if child is not None]
    return children[0] if len(children) == 1 else None


def _edges(node: Any) -> int:
    """How many of its inputs need gradients."""
    return sum(child is not None for child, _ in node.next_functions)


def _elements(node: Any) -> int:
    """How many elements the node's output had in the forward pass."""
    try:
        return torch.Size(node._input_metadata[0].shape).numel()
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return 1


def _elements_in(node: Any) -> int:
    """How many elements its first input had."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is not None:
        return torch.Size(sizes).numel()
    for child, index in node.next_functions:
        if child is not None:
            try:
                return torch.Size(child._input_metadata[index].shape).numel()
            except (AttributeError, IndexError, RuntimeError, TypeError):
                return 0
    return 0


def _saved_divisor(node: Any) -> Any:
    """A number, or a tensor without gradient; None if it has one."""
    others = [child for child, _ in node.next_functions[1:] if child is not None]
    if others:
        return None
    other = node._saved_other
    if not isinstance(other, torch.Tensor):
        return float(other)
    if other.numel() != 1:
        return None
    # A Python number becomes a tensor that does not decide the type of results.
    narrow = torch.zeros((), dtype=torch.int32 if not other.is_floating_point() else torch.float16)
    if (
        other.device.type == "cpu"
        and torch.result_type(other, narrow) == narrow.dtype != other.dtype
    ):
        return float(other.item())
    return other.detach().reshape(())


def _targets(node: Any) -> torch.Tensor:
    """The targets that a mean cross-entropy divided by: those not ignored, by their classes' weights."""
    target, ignored = node._saved_target, node._saved_ignore_index
    if ignored >= 1 << 63:  # it is shown unsigned
        ignored -= 1 << 64
    kept = target != ignored
    weight = node._saved_weight
    if weight is None:
        return kept.sum()
    return (weight.float()[target.masked_fill(~kept, 0)] * kept).sum()


def guard(node: Any, count: torch.Tensor) -> None:
    """A micro-batch may have no targets although the batch has: its gradient is zero then."""
    node.register_prehook(
        lambda gradients: tuple(
            None if g is None else torch.where(count > 0, g, torch.zeros_like(g)) for g in gradients
        )
    )


def nodes(output: Any) -> list[Any]:
    """The graph's nodes that made the tensors in the output of a model."""
    found = (node_of(tensor) for tensor in _tensors(output))
    return [node for node in found if node is not None]


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4:
        if isinstance(value, (list, tuple)):
            items: Any = value
        elif hasattr(value, "values") and callable(value.values):
            items = value.values()
        elif hasattr(value, "__dataclass_fields__"):
            items = vars(value).values()
        else:
            return
        for item in items:
            yield from _tensors(item, depth + 1)


def check_start(lever: Lever, tensor: torch.Tensor, gradient: Any) -> None:
    """Refuse a backward pass from `tensor` with a `gradient` of the script's own for several elements."""
    if gradient is not None and tensor.numel() != 1:
        raise lever.refuse(
            "backward starts from a tensor with the script's own gradients, whose share in "
            "the batch is unknown"
        )


def coupled(loss: torch.Tensor, part: int) -> str | None:
    """What in the graph of `loss` mixes the samples of a batch, if anything."""
    if loss.grad_fn is None or part < 2:
        return None
    queue, seen = [loss.grad_fn], {loss.grad_fn}
    while queue:
        node = queue.pop()
        name = _name(node)
        if "BatchNorm" in name and getattr(node, "_saved_training", False):
            shape = _shape_in(node)
            if len(shape) > 1 and shape[0] == part:  # instance normalization has one row
                return "batch normalization takes its statistics from all samples of a batch"
        elif name == "Mm" and _similarity(node, part):
            rows = node._saved_self_sym_sizes[0]
            return (
                f"it compares the samples of a batch with each other ({rows} by {rows} products of two "
                "activations, as contrastive losses make)"
            )
        elif "Cdist" in name or name == "EuclideanDist":
            shape = torch.Size(node._input_metadata[0].shape)
            if len(shape) == 2 and shape[0] == shape[1] and shape[0] % part == 0:
                return "it compares the samples of a batch with each other (cdist)"
        elif name in ("Index", "IndexSelect", "Gather") and _takes_other_samples(node, name, part):
            return "it picks activations of other samples (by an index, as negatives of a batch are drawn)"
        elif name in ("Var", "Std", "VarMean", "StdMean"):
            shape, dims = _shape_in(node), getattr(node, "_saved_dim", None)
            if len(shape) > 1 and shape[0] == part and (dims is None or 0 in dims):
                return "its loss uses a variance over the samples of a batch"
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                queue.append(child)
    return None


def _similarity(node: Any, part: int) -> bool:
    left, right = node._saved_self_sym_sizes, node._saved_mat2_sym_sizes
    if left[0] != right[1] or left[0] % part or left[0] // part > 4:
        return False
    return all(child is not None and not _is_weight(child) for child, _ in node.next_functions)


def _takes_other_samples(node: Any, name: str, part: int) -> bool:
    """Whether each sample's rows are picked from rows of all samples; what a virtual GPU does not know may be any row."""
    if name == "Index":
        index = node._saved_indices[0]
    else:
        index = node._saved_index if node._saved_dim == 0 else None
    rows, *_ = _sizes_in(node) or (0,)
    # Rows that are picked by a mask or for an expert are not laid out by samples.
    if index is None or index.dtype != torch.long or not rows or rows % part:
        return False
    if index.dim() == 0 or len(index) != part or _is_weight(node.next_functions[0][0]):
        return False
    own = torch.arange(part, device=index.device).view(part, *[1] * (index.dim() - 1))
    return not bool((index // (rows // part) == own).all())


def _is_weight(node: Any) -> bool:
    """A parameter, or a view or copy of one."""
    while _name(node) in ("T", "Transpose", "Permute", "ToCopy", "View", "Alias", "Clone"):
        node = node.next_functions[0][0]
        if node is None:
            return True
    return _name(node) == "AccumulateGrad"


def _shape_in(node: Any) -> torch.Size:
    for child, index in node.next_functions:
        if child is not None:
            try:
                return torch.Size(child._input_metadata[index].shape)
            except (AttributeError, IndexError, RuntimeError, TypeError):
                break
    return torch.Size()
