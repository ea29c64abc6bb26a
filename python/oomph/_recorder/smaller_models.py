"""Smaller variants of a script's models: narrower layers, depthwise separable convolutions, smaller members of the
same family. `oomph fit` measures them if nothing fits; a plan never applies them.

Each changes the models of an unmodified script just before they first run, or on creation. If
the script cannot run a variant, its run fails, and the advice omits it.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from oomph._import_hooks import on_import
from oomph._older_python import zip

SMALL = 4
"""Dimensions up to this are channels of images or coordinates, and stay."""


def once_a_model(change: Callable[[nn.Module], None]) -> None:
    """Call `change` with each outermost module just before it first runs."""
    known: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def enter(module: nn.Module, args: Any) -> None:
        if module not in known:
            known.update(module.modules())
            change(module)

    nn_module.register_module_forward_pre_hook(enter)


# ---- narrower ----

LINEARS = ("Linear", "NonDynamicallyQuantizableLinear", "Conv1D")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KEPT = re.compile(
    r"head_dim|head_size|vocab|label|class|position|num_embeddings|image|patch|kernel|seq|length|padding|layer_idx"
)
"""Attributes that are never a width."""
HEADS = re.compile(r"^(num|n)_(attention_|key_value_|kv_)?heads?$|^heads$")
"""Numbers of attention heads, whose size stays."""


def narrow(root: nn.Module, share: float) -> None:
    """Scale the width of every layer of `root` by `share`, except inputs and outputs.

    Parameters keep their objects, which optimizers hold; their values are lost.
    """

    def scaled(size: int) -> int:
        return size if size <= SMALL else max(1, round(size * share))

    parts = list(root.modules())
    # As they were: parameters may be shared.
    shapes = {id(p): tuple(p.shape) for p in root.parameters()}
    linears = [part for part in parts if type(part).__name__ in LINEARS]
    last = linears[-1] if linears else None
    widths: set[int] = set()
    for part in parts:
        if type(part).__name__ in LINEARS:
            rows, columns = shapes[id(part.weight)]
            inner = (rows, columns) if type(part).__name__ == "Conv1D" else (columns, rows)
            widths.update(inner[:1] if part is last else inner)
        elif isinstance(part, (*CONVOLUTIONS, *TRANSPOSED)):
            widths.update((part.in_channels, part.out_channels))
        elif isinstance(part, nn.Embedding):
            widths.add(part.embedding_dim)
    widths = {width for width in widths if width > SMALL}

    def cut(tensor: torch.Tensor | None, *sizes: int) -> None:
        if tensor is not None and tuple(tensor.shape) != sizes:
            tensor.data = tensor.data.new_empty(sizes)

    for part in parts:
        kind = type(part).__name__
        if kind in LINEARS:
            shape = shapes[id(part.weight)]
            given, made = shape if kind == "Conv1D" else shape[::-1]
            given, made = scaled(given), made if part is last else scaled(made)
            cut(part.weight, *((given, made) if kind == "Conv1D" else (made, given)))
            cut(part.bias, made)
            for name, size in (
                ("in_features", given),
                ("out_features", made),
                ("nx", given),
                ("nf", made),
            ):
                if hasattr(part, name):
                    setattr(part, name, size)
        elif isinstance(part, (*CONVOLUTIONS, *TRANSPOSED)):
            given, made = scaled(part.in_channels), scaled(part.out_channels)
            if part.groups == part.in_channels:
                part.groups = given
            part.groups = math.gcd(part.groups, given, made)
            first, second = (made, given) if isinstance(part, CONVOLUTIONS) else (given, made)
            cut(part.weight, first, second // part.groups, *part.weight.shape[2:])
            cut(part.bias, made)
            part.in_channels, part.out_channels = given, made
        elif isinstance(part, nn.Embedding):
            part.embedding_dim = scaled(part.embedding_dim)
            cut(part.weight, part.num_embeddings, part.embedding_dim)
        elif isinstance(part, nn.GroupNorm):
            part.num_channels = scaled(part.num_channels)
            part.num_groups = math.gcd(part.num_groups, part.num_channels)
            cut(part.weight, part.num_channels)
            cut(part.bias, part.num_channels)
        else:
            # Normalizations, and parameters of modules' own: tokens, positions, scales.
            for tensor in (*part._parameters.values(), *part._buffers.values()):
                if tensor is not None and tensor.is_floating_point() and tensor.dim():
                    shape = shapes.get(id(tensor), tuple(tensor.shape))
                    sizes = [_multiple(size, widths, scaled) for size in shape]
                    cut(tensor, *sizes)
            if isinstance(part, nn.LayerNorm):
                part.normalized_shape = tuple(
                    _multiple(n, widths, scaled) for n in part.normalized_shape
                )
        _rename(vars(part), widths, scaled, share)
    configs = {id(part.config): part.config for part in parts if hasattr(part, "config")}
    for config in configs.values():
        _rename(vars(config), widths, scaled, share)


def _multiple(size: int, widths: set[int], scaled: Callable[[int], int]) -> int:
    """`size` scaled if it is a width, or queries, keys and values of one in a row."""
    if size in widths:
        return scaled(size)
    return 3 * scaled(size // 3) if size % 3 == 0 and size // 3 in widths else size


def _rename(
    numbers: dict[str, Any], widths: set[int], scaled: Callable[[int], int], share: float
) -> None:
    """Scale the widths stored in an object's attributes."""
    for name, value in list(numbers.items()):
        if type(value) is not int or name in ("in_features", "out_features", "nx", "nf"):
            continue
        if name in ("in_channels", "out_channels", "groups", "embedding_dim", "num_channels"):
            continue
        if HEADS.search(name):
            if value > 1 and value * share >= 1:
                numbers[name] = round(value * share)
        elif value in widths and not KEPT.search(name):
            numbers[name] = scaled(value)


# ---- depthwise separable convolutions ----


class Separable:
    """Each wide convolution becomes a depthwise and a pointwise one."""

    def __init__(self) -> None:
        """Observes optimizers, which must get the new parameters."""
        self.replaced = 0
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        original = torch.optim.Optimizer.__init__
        optimizers = self._optimizers

        @functools.wraps(original)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            optimizers.add(optimizer)

        torch.optim.Optimizer.__init__ = initialize  # type: ignore[method-assign]

    def change(self, root: nn.Module) -> None:
        """Replace the convolutions of `root` that can be separated."""
        for parent in list(root.modules()):
            for name, conv in list(parent.named_children()):
                if type(conv) is not nn.Conv2d or conv.groups != 1 or conv.in_channels <= SMALL:
                    continue
                if math.prod(conv.kernel_size) > 1:
                    setattr(parent, name, self._in_two(conv))
                    self.replaced += 1

    def _in_two(self, conv: nn.Conv2d) -> nn.Sequential:
        place = dict(device=conv.weight.device, dtype=conv.weight.dtype)
        depth = nn.Conv2d(
            conv.in_channels, conv.in_channels, conv.kernel_size, conv.stride, conv.padding, conv.dilation,
            groups=conv.in_channels, bias=False, padding_mode=conv.padding_mode, **place,
        )  # fmt: skip
        across = nn.Conv2d(conv.in_channels, conv.out_channels, 1, bias=False, **place)
        # The script's parameters stay those that its optimizers hold.
        conv.weight.data, across.weight = across.weight.data, conv.weight
        across.bias = conv.bias
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                if any(p is across.weight for p in group["params"]):
                    group["params"].append(depth.weight)
        return nn.Sequential(depth, across)


# ---- smaller members of a family ----

TORCHVISION = {
    "resnet": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"],
    "vgg": ["vgg11", "vgg13", "vgg16", "vgg19"],
    "densenet": ["densenet121", "densenet169", "densenet201"],
    "efficientnet": [f"efficientnet_b{n}" for n in range(8)],
    "convnext": ["convnext_tiny", "convnext_small", "convnext_base", "convnext_large"],
    "swin_transformer": ["swin_t", "swin_s", "swin_b"],
    "regnet": ["regnet_y_400mf", "regnet_y_800mf", "regnet_y_1_6gf", "regnet_y_3_2gf", "regnet_y_8gf", "regnet_y_16gf", "regnet_y_32gf"],
    "vision_transformer": ["vit_b_32", "vit_b_16", "vit_l_16", "vit_h_14"],
}  # fmt: skip
"""Builders of torchvision, from small to large, by their module."""

GPT2 = ("n_layer", "n_embd", "n_head")
BERT = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
LLAMA = (*BERT[:3], "num_key_value_heads", "intermediate_size")
T5 = ("num_layers", "d_model", "num_heads", "d_ff")
FAMILIES: dict[str, tuple[tuple[str, ...], dict[str, tuple[int, ...]]]] = {
    "gpt2": (GPT2, {"gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20), "gpt2-xl": (48, 1600, 25)}),
    "bert": (BERT, {"bert-tiny": (2, 128, 2, 512), "bert-mini": (4, 256, 4, 1024), "bert-small": (4, 512, 8, 2048), "bert-medium": (8, 512, 8, 2048), "bert-base": (12, 768, 12, 3072), "bert-large": (24, 1024, 16, 4096)}),
    "roberta": (BERT, {"roberta-base": (12, 768, 12, 3072), "roberta-large": (24, 1024, 16, 4096)}),
    "vit": (BERT, {"ViT-Ti": (12, 192, 3, 768), "ViT-S": (12, 384, 6, 1536), "ViT-B": (12, 768, 12, 3072), "ViT-L": (24, 1024, 16, 4096), "ViT-H": (32, 1280, 16, 5120)}),
    "llama": (LLAMA, {"SmolLM2-135M": (30, 576, 9, 3, 1536), "SmolLM2-360M": (32, 960, 15, 5, 2560), "TinyLlama-1.1B": (22, 2048, 32, 4, 5632), "Llama-3.2-3B": (28, 3072, 24, 8, 8192), "Llama-3.1-8B": (32, 4096, 32, 8, 14336), "Llama-3.1-70B": (80, 8192, 64, 8, 28672)}),
    "qwen2": (LLAMA, {"Qwen2.5-0.5B": (24, 896, 14, 2, 4864), "Qwen2.5-1.5B": (28, 1536, 12, 2, 8960), "Qwen2.5-3B": (36, 2048, 16, 2, 11008), "Qwen2.5-7B": (28, 3584, 28, 4, 18944)}),
    "opt": (("num_hidden_layers", "hidden_size", "num_attention_heads", "ffn_dim"), {"opt-125m": (12, 768, 12, 3072), "opt-1.3b": (24, 2048, 32, 8192), "opt-2.7b": (32, 2560, 32, 10240), "opt-6.7b": (32, 4096, 32, 16384)}),
    "t5": (T5, {"t5-small": (6, 512, 8, 2048), "t5-base": (12, 768, 12, 3072), "t5-large": (24, 1024, 16, 4096)}),
}  # fmt: skip
"""Sizes of Hugging Face's models, from small to large, by `model_type`: names of the configuration's fields,
and their values in published models (their model cards)."""


class Member:
    """Models are built as smaller members of their families."""

    def __init__(self, steps: int) -> None:
        """`steps` down in the family; those that have no smaller one stay."""
        self.steps = steps
        self.became: list[str] = []
        # Kept, so that no other comes to lie where one lay.
        self._configs: dict[int, Any] = {}

    def install(self) -> None:
        """Before the script imports the libraries."""
        for family, names in TORCHVISION.items():
            on_import(
                f"torchvision.models.{family}",
                functools.partial(self._replace_builders, names=names),
            )
        on_import("transformers.modeling_utils", self._watch_configurations)

    def _replace_builders(self, module: Any, names: list[str]) -> None:
        builders = {name: getattr(module, name) for name in names}
        registry = importlib.import_module("torchvision.models._api").BUILTIN_MODELS
        for index, name in enumerate(names):
            if index == 0:
                continue
            smaller = names[max(0, index - self.steps)]

            @functools.wraps(builders[name])
            def build(*args: Any, _smaller: str = smaller, **kwargs: Any) -> nn.Module:
                kwargs.pop("weights", None)
                kwargs.pop("pretrained", None)
                self._note(_smaller)
                return builders[_smaller](**kwargs)

            setattr(module, name, build)
            registry[name] = build
            package = sys.modules.get("torchvision.models")
            if package is not None and hasattr(package, name):
                setattr(package, name, build)

    def _watch_configurations(self, module: Any) -> None:
        original = module.PreTrainedModel.__init__
        member = self

        @functools.wraps(original)
        def initialize(model: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            member._shrink(config)
            original(model, config, *args, **kwargs)

        module.PreTrainedModel.__init__ = initialize

    def _shrink(self, config: Any) -> None:
        if id(config) in self._configs or getattr(config, "model_type", None) not in FAMILIES:
            return
        self._configs[id(config)] = config
        fields, members = FAMILIES[config.model_type]
        size = weight(tuple(getattr(config, field) for field in fields))
        smaller = [name for name, sizes in members.items() if weight(sizes) < size * 0.9]
        if not smaller:
            return
        name = smaller[-min(self.steps, len(smaller))]
        for field, value in zip(fields, members[name], strict=True):
            setattr(config, field, value)
        heads = members[name][2]
        if getattr(config, "head_dim", None):
            config.head_dim = members[name][1] // heads
        if hasattr(config, "word_embed_proj_dim"):
            config.word_embed_proj_dim = config.hidden_size
        self._note(name)

    def _note(self, name: str) -> None:
        if name not in self.became:
            self.became.append(name)


def weight(sizes: tuple[int, ...]) -> int:
    """About how many parameters a transformer of so many layers and such a width has."""
    layers, width, *_ = sizes
    return layers * width * width
