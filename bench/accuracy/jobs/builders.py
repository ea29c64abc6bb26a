"""Models and batches that several files of jobs make. Each gives what a job is: `build`, `opt`, `amp` (training.py)."""


def torchvision_model(name, bs, res=224, opt="sgd", amp=None, cl=False, loss="ce", **kw):
    def build():
        import torch, torchvision

        m = getattr(torchvision.models, name)(**kw).cuda().train()
        if cl:
            m = m.to(memory_format=torch.channels_last)

        def batch():
            x = torch.randn(bs, 3, res, res, device="cuda")
            if cl:
                x = x.contiguous(memory_format=torch.channels_last)
            return x, torch.randint(0, 1000, (bs,), device="cuda")

        def lossf(b):
            out = m(b[0])
            if hasattr(out, "logits"):
                out = out.logits
            return torch.nn.functional.cross_entropy(out, b[1])

        return m, batch, lossf

    return dict(build=build, opt=opt, amp=amp)


def transformers_model(
    cls,
    cfgcls,
    bs,
    seq,
    opt="adamw",
    amp="bf16",
    ckpt=False,
    dtype=None,
    seq2seq=False,
    labels=True,
    grad=True,
    **cfg,
):
    def build():
        import torch, transformers

        c = getattr(transformers, cfgcls)(**cfg)
        with torch.device("cuda"):
            old = torch.get_default_dtype()
            if dtype:
                torch.set_default_dtype(getattr(torch, dtype))
            m = getattr(transformers, cls)(c)
            torch.set_default_dtype(old)
        m.train()
        if ckpt:
            m.gradient_checkpointing_enable()
        V = c.vocab_size

        def batch():
            return torch.randint(0, V, (bs, seq), device="cuda")

        def lossf(b):
            kw = dict(input_ids=b)
            if labels:
                kw["labels"] = b if cls.find("Sequence") < 0 else b[:, 0] % 2
            if seq2seq:
                kw["decoder_input_ids"] = None
                kw.pop("decoder_input_ids")
            return m(**kw).loss

        return m, batch, lossf

    return dict(build=build, opt=opt, amp=amp)


def hf(cls, config, batch, opt="adamw", amp="bf16", **cfg):
    """A transformers model from its configuration; `batch(config)` makes the keyword arguments."""

    def build():
        import torch, transformers as T

        c = getattr(T, config)(**cfg)
        with torch.device("cuda"):
            m = getattr(T, cls)(c)
        return m.train(), lambda: batch(torch, c), lambda b: m(**b).loss

    return dict(build=build, opt=opt, amp=amp)


def lm(bs, seq):
    def batch(torch, c):
        x = torch.randint(0, c.vocab_size, (bs, seq), device="cuda")
        return dict(input_ids=x, labels=x)

    return batch


def masked(bs, seq):
    """Padded sequences with an attention mask, as a collator makes them."""

    def batch(torch, c):
        x = torch.randint(5, c.vocab_size, (bs, seq))
        mask = torch.ones_like(x)
        for i in range(bs):
            mask[i, seq - i * seq // (2 * bs) :] = 0
        return dict(
            input_ids=x.cuda(),
            attention_mask=mask.cuda(),
            labels=torch.where(mask.bool(), x, -100).cuda(),
        )

    return batch


def images(bs, res, classes):
    def batch(torch, c):
        return dict(
            pixel_values=torch.randn(bs, 3, res, res, device="cuda"),
            labels=torch.randint(0, classes, (bs,), device="cuda"),
        )

    return batch


def module(make, batch, loss, opt="adam", amp=None):
    """A plain module: `make(torch)`, `batch(torch)`, `loss(torch, model, batch)`."""

    def build():
        import torch

        m = make(torch).cuda().train()
        return m, lambda: batch(torch), lambda b: loss(torch, m, b)

    return dict(build=build, opt=opt, amp=amp)


def setting(spec, **flags):
    """`spec` with flags of torch.backends.cudnn, set when the job begins."""
    made = spec()

    def build():
        import torch

        for name, value in flags.items():
            setattr(torch.backends.cudnn, name, value)
        return made["build"]()

    return dict(made, build=build)
