"""What operators that only CUDA has compute, by those of the CPU: normalization, convolution, attention, recurrent layers.

Each function takes the operator's arguments, with tensors on the CPU, and gives its results in order, less those
at the end that no program reads (reserve spaces, logarithms of sums, random states). It raises `ValueError` for what cannot be computed:
dropout inside cuDNN's operators, whose masks nobody but cuDNN knows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch

from oomph._older_python import zip
from oomph._virtual_gpu import dispatch, random_numbers

_aten = torch.ops.aten
_ALL = 2**64 - 1


def _batch_norm(x, weight, bias, mean, var, training, momentum, eps):
    return _aten.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)


def _batch_norm_backward(x, grad, weight, mean, var, save_mean, save_invstd, eps, reserve):
    return _aten.native_batch_norm_backward(
        grad, x, weight, mean, var, save_mean, save_invstd, True, eps, [True, True, True]
    )


# ---- batch normalization of several ranks, in parts ----


def _but_channels(x):
    return [d for d in range(x.dim()) if d != 1]


def _by_channel(x, values):
    """One value for each channel, as `x` has them: in its second dimension."""
    return values.view([-1 if d == 1 else 1 for d in range(x.dim())])


def _batch_norm_stats(x, eps):
    var, mean = torch.var_mean(x.float(), _but_channels(x), correction=0)
    return [mean, (var + eps).rsqrt()]


def _batch_norm_elemt(x, weight, bias, mean, invstd, eps):
    normal = (x.float() - _by_channel(x, mean)) * _by_channel(x, invstd)
    normal = normal if weight is None else normal * _by_channel(x, weight.float())
    normal = normal if bias is None else normal + _by_channel(x, bias.float())
    return [normal.to(x.dtype)]


def _batch_norm_gather(x, means, invstds, running_mean, running_var, momentum, eps, counts):
    """`counts` elements for each of the ranks, which are the rows of `means` and `invstds`."""
    counts = torch.as_tensor(counts, dtype=means.dtype).expand(means.shape[0])[:, None]
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    squares = ((invstds.pow(-2) - eps + (means - mean) ** 2) * counts).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(momentum * squares / (total - 1))
    return [mean, (squares / total + eps).rsqrt()]


def _batch_norm_backward_reduce(
    grad, x, mean, invstd, weight, wants_input, wants_weight, wants_bias
):
    dims, grad = _but_channels(x), grad.float()
    of_mean = grad.sum(dims)
    of_normal = (grad * (x.float() - _by_channel(x, mean))).sum(dims)
    kind = invstd.dtype if weight is None else weight.dtype
    none = torch.empty(0)
    return [
        *((of_mean, of_normal) if wants_input else (none, none)),
        (of_normal * invstd).to(kind) if wants_weight else none,
        of_mean.to(kind) if wants_bias else none,
    ]


def _batch_norm_backward_elemt(grad, x, mean, invstd, weight, of_mean, of_normal, counts):
    total = counts.sum()
    gradient = grad.float() - _by_channel(x, of_mean / total)
    centred = x.float() - _by_channel(x, mean)
    gradient = gradient - centred * _by_channel(x, invstd * invstd * of_normal / total)
    scale = invstd if weight is None else invstd * weight.float()
    return [(gradient * _by_channel(x, scale)).to(grad.dtype)]


# ---- convolutions and grids by the names of cuDNN, and products with another type of result ----


def _convolution(x, weight, padding, stride, dilation, groups, *_):
    return [_aten.convolution(x, weight, None, stride, padding, dilation, False, [0], groups)]


def _transposed(x, weight, padding, output_padding, stride, dilation, groups, *_):
    return [
        _aten.convolution(x, weight, None, stride, padding, dilation, True, output_padding, groups)
    ]


def _convolution_relu(x, weight, bias, stride, padding, dilation, groups):
    return [
        _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0], groups).relu()
    ]


def _convolution_add_relu(x, weight, z, alpha, bias, stride, padding, dilation, groups):
    out = _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0], groups)
    return [(out + z * (1 if alpha is None else alpha)).relu()]


def _depthwise(x, weight, size, bias, stride, padding, dilation):
    return [
        _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0], x.shape[-len(size) - 1])
    ]  # fmt: skip


def _grid(theta, n, c, h, w):
    return [_aten.affine_grid_generator(theta, [n, c, h, w], True)]


def _grid_backward(grad, n, c, h, w):
    return [_aten.affine_grid_generator_backward(grad, [n, c, h, w], True)]


def _sampler(x, grid):
    return [_aten.grid_sampler_2d(x, grid, 0, 0, True)]


def _sampler_backward(x, grid, grad):
    return _aten.grid_sampler_2d_backward(grad, x, grid, 0, 0, True, [True, True])


def _ctc_loss(
    log_probs, targets, input_lengths, target_lengths, blank, deterministic, zero_infinity
):
    targets = targets.long()
    given = (log_probs, targets, input_lengths, target_lengths)
    loss, alpha = _aten._ctc_loss(*given, blank, zero_infinity)
    ones = torch.ones_like(loss)
    return [loss, _aten._ctc_loss_backward(ones, *given, loss, alpha, blank, zero_infinity)]


def _product_of_type(product: Any) -> Any:
    """`product` of tensors in half precision, as another type."""

    def typed(*given, **options):
        *given, dtype = given
        return [product(*(t.float() for t in given), **options).to(dtype)]

    return typed


def _softmax_of(softmax: Any) -> Any:
    """`softmax`, also of half precision to single, which only CUDA has."""
    return lambda x, dim, to_single: [softmax(x.float() if to_single else x, dim, False)]


def _softmax_backward_of(backward: Any) -> Any:
    return lambda grad, out, dim, dtype: [backward(grad, out, dim, grad.dtype).to(dtype)]


# ---- attention: (batch, heads, length, width) ----


def _no_dropout(p: float) -> None:
    if p:
        raise ValueError("dropout inside cuDNN's attention")


def _probabilities(q, k, bias, causal: bool, scale: float | None):
    """Of each key for each query, in single precision; and the scale."""
    q, k = q.float(), k.float()
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias.float()
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    # A query without any key gets nothing.
    return scores.softmax(-1).nan_to_num(0.0), scale


def _grouped(q, kv):
    """Keys or values for as many heads as there are of queries."""
    heads = q.shape[-3] // kv.shape[-3] if kv.shape[-3] else 1
    return kv if heads == 1 else kv.repeat_interleave(heads, -3)


def _attend(q, k, v, bias, causal, scale, mask=None):
    """`mask` is what dropout multiplies probabilities with."""
    p, _ = _probabilities(q, _grouped(q, k), bias, causal, scale)
    p = p if mask is None else p * mask
    return (p @ _grouped(q, v).float()).to(q.dtype)


def _attend_backward(grad, q, k, v, bias, causal, scale, mask=None):
    """The gradients of queries, keys, values and bias."""
    keys, values, grad = _grouped(q, k).float(), _grouped(q, v).float(), grad.float()
    p, scale = _probabilities(q, keys, bias, causal, scale)
    of_p = grad @ values.transpose(-2, -1)
    of_p = of_p if mask is None else of_p * mask
    of_scores = p * (of_p - (of_p * p).sum(-1, keepdim=True))
    p = p if mask is None else p * mask

    def gathered(gradient, given):
        if gradient.shape[-3] != given.shape[-3]:
            gradient = gradient.unflatten(-3, (given.shape[-3], -1)).sum(-3)
        return gradient.to(given.dtype)

    return [
        (of_scores @ keys * scale).to(q.dtype),
        gathered(of_scores.transpose(-2, -1) @ q.float() * scale, k),
        gathered(p.transpose(-2, -1) @ grad, v),
        of_scores if bias is None else of_scores.sum_to_size(bias.shape).to(bias.dtype),
    ]


def _scores(q, k) -> tuple[int, ...]:
    """The shape of the scores."""
    return (*q.shape[:-1], k.shape[-2])


def _efficient(q, k, v, bias, wants_sums, dropout_p=0.0, is_causal=False, *, scale=None, drawn):
    mask = None
    if dropout_p:
        shape = _scores(q, k)
        offset = drawn.before(math.prod(shape))
        mask = random_numbers.efficient_mask(drawn.seed, offset, shape, dropout_p)
    return [_attend(q, k, v, bias, is_causal, scale, mask)]


def _efficient_backward(
    grad, q, k, v, bias, out, sums, seed, offset, dropout_p, wanted, is_causal=False, *, scale=None
):
    mask = None
    if dropout_p:
        seed, offset = (int(t) & _ALL for t in (seed, offset))
        mask = random_numbers.efficient_mask(seed, offset, _scores(q, k), dropout_p)
    found = _attend_backward(grad, q, k, v, bias, is_causal, scale, mask)
    # Those of queries, keys and values always come, whatever was asked for.
    return found if wanted[3] else found[:3]


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None, drawn):
    if not dropout_p:
        return [_attend(q, k, v, None, is_causal, scale)]
    offset = drawn.before(32 * q.shape[0] * q.shape[1])
    mask = random_numbers.flash_mask(drawn.seed, offset, _scores(q, k), dropout_p)
    # The kernel also keeps where the generator stood, for the backward pass, behind the sums that only that one reads.
    state = torch.tensor([drawn.seed, offset], dtype=torch.uint64)
    sums = torch.zeros(q.shape[:-1])
    return [_attend(q, k, v, None, is_causal, scale, mask), sums, state]


def _flash_backward(
    grad, q, k, v, out, sums, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, state, unused, *, scale=None
):  # fmt: skip
    mask = None
    if dropout_p:
        seed, offset = (int(number) & _ALL for number in state.view(torch.int64))
        mask = random_numbers.flash_mask(seed, offset, _scores(q, k), dropout_p)
    return _attend_backward(grad, q, k, v, None, is_causal, scale, mask)[:3]


def _cudnn(q, k, v, bias, wants_sums, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
    _no_dropout(dropout_p)
    return [_attend(q, k, v, bias, is_causal, scale)]


def _cudnn_backward(
    grad, q, k, v, out, sums, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout_p, is_causal, *, scale=None
):  # fmt: skip
    _no_dropout(dropout_p)
    return _attend_backward(grad, q, k, v, bias, is_causal, scale)[:3]


# ---- recurrent layers ----

_RECURRENT = (torch.rnn_relu, torch.rnn_tanh, torch.lstm, torch.gru)
_LSTM = 2
_GATES = (1, 1, 4, 3)


def _shaped(t, at, each, mode, hidden, projected):
    """A layer's parameter as the CPU wants it; autocast passes on cuDNN's view of it, one column.

    The order is: weights of input and state, their biases, the projection.
    """
    if at == each - 1 and projected:
        return t.reshape(projected, -1)
    return t.reshape(_GATES[mode] * hidden, -1) if at < 2 else t.reshape(-1)


def _recurrent(
    x, weights, each, buffer, hx, cx, mode, hidden, projected, layers, batch_first, dropout, train,
    bidirectional, batch_sizes, state=None,
):  # fmt: skip
    """Outputs and last states; `weights` are the parameters of all layers, `each` of them for one layer and direction."""
    if dropout and train and layers > 1:
        raise ValueError("dropout between recurrent layers")
    kind = x.dtype
    if kind.itemsize < 4:  # many CPUs are hundreds of times slower in half precision
        x, hx, cx = x.float(), hx.float(), None if cx is None else cx.float()
        weights = [t.float() for t in weights]
    first: Any = hx if mode != _LSTM else [hx, cx]
    weights = [_shaped(t, at % each, each, mode, hidden, projected) for at, t in enumerate(weights)]
    has_biases = each - bool(projected) == 4
    if batch_sizes:
        sizes = torch.tensor(batch_sizes)
        given = (x, sizes, first, weights, has_biases, layers, 0.0, train, bidirectional)
    else:
        given = (x, first, weights, has_biases, layers, 0.0, train, bidirectional, batch_first)
    out = [t.to(kind) for t in _RECURRENT[mode](*given)]
    return out if mode == _LSTM else [*out, torch.empty(0, dtype=kind)]


def _recurrent_backward(
    x, weights, each, buffer, hx, cx, out, grad_out, grad_hy, grad_cy, mode, hidden, projected, layers,
    batch_first, dropout, train, bidirectional, batch_sizes, state, reserve, wanted,
):  # fmt: skip
    given = [t.detach().requires_grad_() for t in (x, hx, *([] if cx is None else [cx]), *weights)]
    states = given[1 : len(given) - len(weights)]
    found: list[Any] = []

    def differentiate() -> None:
        dispatch.include(False)  # operators of the CPU, of which there are hundreds
        try:
            outs = _recurrent(
                given[0], given[-len(weights) :], each, buffer, states[0],
                states[1] if cx is not None else None, mode, hidden, projected, layers, batch_first, dropout,
                train, bidirectional, batch_sizes,
            )  # fmt: skip
            pairs = zip(outs, (grad_out, grad_hy, grad_cy), strict=True)
            # Their products have the same gradients. Given apart, torch would import sympy first, for half a second.
            ends = [(end * grad).sum() for end, grad in pairs if grad is not None and grad.numel()]
            found.extend(torch.autograd.grad(ends, given, allow_unused=True))
        except BaseException as error:
            found[:] = [error]

    # Below autograd nothing can be differentiated: another thread is above it.
    thread = threading.Thread(target=differentiate)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    found = [torch.zeros_like(t) if g is None else g for t, g in zip(given, found, strict=True)]
    # Those of input and states always come, whatever was asked for.
    return found if wanted[3] else found[: -len(weights)]


def _lstm_cell(of_input, of_state, cx, *biases):
    gates = sum((b for b in biases if b is not None), of_input + of_state)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return [o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)]


def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, gates, has_bias):
    i, f, g, o = gates.chunk(4, 1)
    end = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_c = grad_hy * o * (1 - end * end) + (0 if grad_cy is None else grad_cy)
    of_gates = torch.cat(
        [
            of_c * g * i * (1 - i),
            of_c * cx * f * (1 - f),
            of_c * i * (1 - g * g),
            grad_hy * end * o * (1 - o),
        ],
        1,
    )
    return [of_gates, of_c * f, *([of_gates.sum(0)] if has_bias else [])]


def _gru_cell(of_input, of_state, hx, input_bias=None, state_bias=None):
    if input_bias is not None:
        of_input, of_state = of_input + input_bias, of_state + state_bias
    (ir, iz, new), (hr, hz, hn) = of_input.chunk(3, 1), of_state.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return [n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)]


def _gru_cell_backward(grad, kept, has_bias):
    r, z, n, hx, hn = kept.chunk(5, 1)
    of_new = grad * (1 - z) * (1 - n * n)
    of_z = grad * (hx - n) * z * (1 - z)
    of_r = of_new * hn * r * (1 - r)
    of_input = torch.cat([of_r, of_z, of_new], 1)
    of_state = torch.cat([of_r, of_z, of_new * r], 1)
    sums = [of_input.sum(0), of_state.sum(0)] if has_bias else []
    return [of_input, of_state, grad * z, *sums]


def _rms_norm_backward(grad, x, shape, rstd, weight, wanted):
    dims = tuple(range(-len(shape), 0))
    normal, of_normal = x.float() * rstd, grad.float() if weight is None else grad.float() * weight
    found = []
    if wanted[0]:
        mean = (of_normal * normal).mean(dims, keepdim=True)
        found.append((rstd * (of_normal - normal * mean)).to(x.dtype))
    if wanted[1] and weight is not None:
        found.append((grad.float() * normal).sum_to_size(weight.shape).to(weight.dtype))
    return found


def _log_sigmoid_backward(grad, x, buffer, **out):
    """The CPU's takes a buffer that only the CPU keeps."""
    return [grad * (-x).sigmoid()]


DRAWING = {_efficient, _flash}
"""Those that take the numbers which their operator has drawn, as `drawn`."""

EQUIVALENTS: dict[str, Callable[..., Any]] = {
    "aten::cudnn_batch_norm": _batch_norm,
    "aten::cudnn_batch_norm_backward": _batch_norm_backward,
    "aten::batch_norm_stats": _batch_norm_stats,
    "aten::batch_norm_elemt": _batch_norm_elemt,
    "aten::batch_norm_gather_stats": _batch_norm_gather,
    "aten::batch_norm_gather_stats_with_counts": _batch_norm_gather,
    "aten::batch_norm_backward_reduce": _batch_norm_backward_reduce,
    "aten::batch_norm_backward_elemt": _batch_norm_backward_elemt,
    "aten::cudnn_convolution": _convolution,
    "aten::cudnn_convolution_transpose": _transposed,
    "aten::cudnn_convolution_relu": _convolution_relu,
    "aten::cudnn_convolution_add_relu": _convolution_add_relu,
    "aten::_conv_depthwise2d": _depthwise,
    "aten::conv_depthwise3d": _depthwise,
    "aten::cudnn_affine_grid_generator": _grid,
    "aten::cudnn_affine_grid_generator_backward": _grid_backward,
    "aten::cudnn_grid_sampler": _sampler,
    "aten::cudnn_grid_sampler_backward": _sampler_backward,
    "aten::_cudnn_ctc_loss": _ctc_loss,
    "aten::_masked_scale": lambda x, mask, scale: [x * mask * scale],
    "aten::_softmax": _softmax_of(_aten._softmax),
    "aten::_softmax_backward_data": _softmax_backward_of(_aten._softmax_backward_data),
    "aten::_log_softmax": _softmax_of(_aten._log_softmax),
    "aten::_log_softmax_backward_data": _softmax_backward_of(_aten._log_softmax_backward_data),
    "aten::log_sigmoid_backward": _log_sigmoid_backward,
    "aten::mm.dtype": _product_of_type(torch.mm),
    "aten::bmm.dtype": _product_of_type(torch.bmm),
    "aten::addmm.dtype": _product_of_type(torch.addmm),
    "aten::baddbmm.dtype": _product_of_type(torch.baddbmm),
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "aten::_cudnn_rnn": _recurrent,
    "aten::_cudnn_rnn_backward": _recurrent_backward,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "aten::_fused_rms_norm_backward": _rms_norm_backward,
}
"""By operator, or by one of its overloads."""
