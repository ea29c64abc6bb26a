"""Linear layers with weights of 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from oomph.levers._shared.base import failure

AT_ONCE = 64 << 20
"""Bytes of dequantized weights (or, for `dynamic`, of sums) at a time."""

ROWS = 17
"""The fewest rows for CUDA's product of 8-bit integers."""

MULTIPLE = 8
"""Its dimensions must be multiples of this."""


def is_conv1d(module: nn.Module) -> bool:
    """Hugging Face's linear layer with a transposed weight."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


class QuantizedLinear(nn.Module):
    """`inputs @ (q * scale).T + bias`, with `q` (outputs, inputs) in int8 and `scale` (outputs) in fp32."""

    def __init__(self, linear: nn.Module, kind: str, frozen: bool = False) -> None:
        """`linear` is an `nn.Linear` or a Hugging Face `Conv1D`; its weights are read where they are.

        `frozen`: for a job that trains, in which gradients go through the layer. Its parameter stays, without
        memory: whether it is trained after all is known at the next call.
        """
        super().__init__()
        self.frozen = frozen
        self.kind, self.transposed = kind, is_conv1d(linear)
        self.dtype = linear.weight.dtype
        self.lent: tuple[torch.Tensor, int] | None = None
        """Dequantized weights that were handed out, and their version at that time."""
        # Not in state dictionaries: there the layer has a `weight`, as it had.
        self.register_buffer("q", None, persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self.round(linear.weight.detach())  # type: ignore[operator]
        self.out_features, self.in_features = self.q.shape
        self.bias = linear.bias
        self.train(linear.training)
        if frozen:
            weight: Any = linear.weight
            weight.data = weight.new_full((), float("nan")).expand(weight.shape)
            self._put(weight)

    def _put(self, weight: Any) -> None:
        if weight is not None:
            self._parameters = {"weight": weight, **self._parameters}

    def round(self, weight: torch.Tensor) -> None:
        """Take `weight`, as the layer had it."""
        if self.transposed:
            weight = weight.t()
        scale = weight.abs().amax(1).float().div_(127).clamp_(min=torch.finfo(torch.float32).tiny)
        q = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
        for part in _parts(weight.shape[0], weight.shape[1] * 4):
            q[part] = (weight[part].float() / scale[part, None]).round_().clamp_(-127, 127)
        self.q, self.scale = q, scale

    def _load_from_state_dict(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: Any, *rest: Any
    ) -> None:
        """A script may load weights after the model has been moved, and thus quantized."""
        weight = state.get(f"{prefix}weight")
        others = {key: value for key, value in state.items() if key != f"{prefix}weight"}
        kept = self._parameters.pop("weight", None)
        super()._load_from_state_dict(others, prefix, metadata, strict, missing, *rest)
        self._put(kept)
        if weight is None:
            missing.append(f"{prefix}weight")
        elif weight.shape != (self.q.shape[::-1] if self.transposed else self.q.shape):
            raise ValueError(
                f"{prefix}weight has the shape {tuple(weight.shape)}; the layer's is {tuple(self.q.shape)}"
            )
        else:
            self.lent = None
            device = self.q.device
            self.round(weight.detach())
            self.q, self.scale = self.q.to(device), self.scale.to(device)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        """Moves move the scales; casts leave them in fp32."""
        self.settle()
        scale, kept = self.scale, self._parameters.pop("weight", None)
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.q.device)).dtype
        super()._apply(fn, recurse)
        if kept is not None:
            kept.data = fn(kept.data[0, 0]).expand(kept.shape)
        self._put(kept)
        if self.scale.dtype != torch.float32:
            self.scale = scale.to(self.scale.device)
        return self

    @property
    def weight(self) -> torch.Tensor:
        """The dequantized weights in the layer's original form; writes to them are
        quantized before the next use."""
        if self.lent is None:
            wide = self.wide(slice(None), self.dtype)
            wide = wide.t().contiguous() if self.transposed else wide
            self.lent = wide, 0 if wide.is_inference() else wide._version
        return self.lent[0]

    def settle(self) -> None:
        """Quantize what was written to the handed-out weights."""
        if self.lent is None:
            return
        (lent, version), self.lent = self.lent, None
        if not lent.is_inference() and lent._version == version:
            wide = self.wide(slice(None), self.dtype)
            if torch.equal(lent, wide.t() if self.transposed else wide):
                return
        self.round(lent.detach())

    def wide(self, rows: slice, dtype: torch.dtype) -> torch.Tensor:
        """Rows of the weights in `dtype`: products in fp32, rounded once."""
        return self.q[rows].to(dtype).mul_(self.scale[rows, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` is (…, inputs); the result (…, outputs) in its type."""
        self.settle()
        if self.kind == "dynamic" and not (
            self.in_features % MULTIPLE or self.out_features % MULTIPLE
        ):
            return self._integers(x)
        if not self.frozen:
            return self.product(x, self.bias)
        if self._parameters["weight"].requires_grad:  # type: ignore[union-attr]
            raise failure(
                "int8_frozen",
                f"weights of a linear layer ({self.in_features} inputs, {self.out_features} outputs) that were frozen are trained now",
            )
        bias = self.bias
        if bias is not None and bias.requires_grad:
            return _Through.apply(x, self, None) + bias
        return _Through.apply(x, self, bias)

    def product(self, x: torch.Tensor, bias: Any) -> torch.Tensor:
        """The product with some rows of the weights at a time."""
        parts = _parts(self.out_features, self.in_features * x.element_size())
        if len(parts) == 1:
            return functional.linear(x, self.wide(slice(None), x.dtype), bias)
        out: Any = None
        for part in parts:
            of_part = None if bias is None else bias[part]
            piece = functional.linear(x, self.wide(part, x.dtype), of_part)
            if out is None:
                # Of the product's type, which autocast decides.
                out = piece.new_empty((*piece.shape[:-1], self.out_features))
            out[..., part] = piece
        return out

    def _integers(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features)
        out = rows.new_empty((rows.shape[0], self.out_features))
        for part in _parts(rows.shape[0], self.out_features * 4):
            piece = rows[part]
            scale = piece.abs().amax(1, keepdim=True).float().div_(127)
            scale.clamp_(min=torch.finfo(torch.float32).tiny)
            q = (piece / scale).round_().clamp_(-127, 127).to(torch.int8)
            count = q.shape[0]
            if count < ROWS:
                q = functional.pad(q, (0, 0, 0, ROWS - count))
            sums = torch._int_mm(q, self.q.t())[:count]
            product = sums.float().mul_(scale).mul_(self.scale)
            out[part] = product if self.bias is None else product.add_(self.bias)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        """As `nn.Linear` prints itself."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, {self.kind}"
        )


class _Through(torch.autograd.Function):
    """The product, whose backward pass makes the weights wide again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: QuantizedLinear, bias: Any) -> torch.Tensor:
        ctx.layer, ctx.q, ctx.dtype = layer, layer.q, x.dtype
        return layer.product(x, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        layer = ctx.layer
        if layer.q is not ctx.q:
            raise RuntimeError(
                "weights in 8 bits were loaded anew before the backward pass that needs them"
            )
        found: Any = None
        for part in _parts(layer.out_features, layer.in_features * gradient.element_size()):
            piece = gradient[..., part] @ layer.wide(part, gradient.dtype)
            found = piece if found is None else found.add_(piece)
        return found.to(ctx.dtype), None, None


def _parts(count: int, each: int) -> list[slice]:
    """`count` rows of `each` bytes in parts of about `AT_ONCE`, all alike but the last."""
    pieces = max(1, -(-count * each // AT_ONCE))
    size = max(1, -(-count // pieces))
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
