"""`torch.compile` in its modes.

`python torch_compile.py NAME` as in training.py.
"""

from builders import hf, masked, torchvision_model, transformers_model
from training import main


def compiled(spec, steps=3, **options):
    build = spec["build"]

    def compile_it():
        model, batch, loss = build()
        model.compile(**options)
        return model, batch, loss

    return dict(spec, build=compile_it, steps=steps)


def resnet():
    return torchvision_model("resnet18", 16)


def bert():
    return transformers_model(
        "BertForSequenceClassification", "BertConfig", 8, 128, num_hidden_layers=3
    )


def compiled_forward(spec):
    made = spec()

    def build():
        import torch

        m, batch, loss = made["build"]()
        m.forward = torch.compile(m.forward)
        return m, batch, loss

    return dict(made, build=build)


JOBS = {
    "gpt2_b8_compiled": lambda: compiled(
        transformers_model("GPT2LMHeadModel", "GPT2Config", 8, 1024, use_cache=False)
    ),
    "resnet18_b64_compiled": lambda: compiled_forward(lambda: torchvision_model("resnet18", 64)),
    "bert_small_compiled": lambda: compiled_forward(
        lambda: hf("BertForMaskedLM", "BertConfig", masked(16, 256), num_hidden_layers=4)
    ),
    "resnet_compiled": lambda: compiled(resnet(), steps=4),
    "bert_compiled": lambda: compiled(bert(), steps=4),
    "resnet_reduce_overhead": lambda: compiled(resnet(), steps=4, mode="reduce-overhead"),
    "bert_reduce_overhead": lambda: compiled(bert(), steps=4, mode="reduce-overhead"),
    "resnet_max_autotune": lambda: compiled(resnet(), steps=4, mode="max-autotune-no-cudagraphs"),
    "bert_max_autotune": lambda: compiled(bert(), steps=4, mode="max-autotune-no-cudagraphs"),
}

if __name__ == "__main__":
    main(JOBS)
