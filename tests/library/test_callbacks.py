"""The callbacks leave batch size, accumulation and learning rate alone, and survive errors exactly."""

import oomph
import pytest
import torch
from oomph.levers.checkpoint import is_checkpointed
from torch import nn

torch.set_num_threads(1)


def limited(model, samples, times=None):
    """Fail when more than `samples` go through, `times` times at most."""
    forward, left = model.forward, [times]

    def guarded(*args, **kwargs):
        x = args[0] if args else next(iter(kwargs.values()))
        if len(x) > samples and left[0] != 0:
            left[0] = None if left[0] is None else left[0] - 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return forward(*args, **kwargs)

    model.forward = guarded


@pytest.mark.parametrize("accumulation", [1, 2])
def test_hugging_face_trainer(tmp_path, accumulation):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from oomph.huggingface import MemoryCallback

    def train(samples):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=16, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        g = torch.Generator().manual_seed(1)
        data = []
        for _ in range(32):
            ids = torch.randint(0, 50, (12,), generator=g)
            labels = ids.clone()
            labels[int(torch.randint(3, 12, (1,), generator=g)) :] = -100
            data.append({"input_ids": ids, "labels": labels})
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=8, gradient_accumulation_steps=accumulation, max_steps=3,
            learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=1,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=args, train_dataset=data)
        callback = MemoryCallback(trainer, protect="always")
        trainer.add_callback(callback)
        if samples:
            # From the second micro-batch on: what was accumulated before must not count twice.
            forward, calls = model.forward, [0]

            def guarded(*a, **k):
                calls[0] += 1
                if calls[0] > 1 and len(k["input_ids"]) > samples:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
                return forward(*a, **k)

            model.forward = guarded
            trainer._signature_columns = ["input_ids", "labels"]
        trainer.train()
        assert "training_step" not in trainer.__dict__
        rates = [e["learning_rate"] for e in trainer.state.log_history if "learning_rate" in e]
        return model, callback, rates

    plain, _, rates = train(None)
    model, callback, own_rates = train(3)
    assert callback.errors and rates == own_rates
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=2e-5), (a - b).abs().max()


def test_lightning():
    lightning = pytest.importorskip("lightning.pytorch")
    from oomph.lightning import MemoryCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

        def training_step(self, batch, index):
            return (self.net(batch[0]) - batch[1]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train(samples):
        torch.manual_seed(0)
        module = Module()
        g = torch.Generator().manual_seed(1)
        data = torch.utils.data.TensorDataset(
            torch.randn(30, 6, generator=g), torch.randn(30, 1, generator=g)
        )
        callback = MemoryCallback(protect="always")
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[callback], gradient_clip_val=0.5,
        )  # fmt: skip
        if samples:
            limited(module.net, samples)
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=10))
        return module, callback

    plain, _ = train(None)
    module, callback = train(3)
    assert callback.errors and "training_step" not in module.__dict__
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_lightning_grows_back():
    lightning = pytest.importorskip("lightning.pytorch")
    from oomph.lightning import MemoryCallback

    sizes = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(6, 1)

        def training_step(self, batch, index):
            sizes.append(len(batch[0]))
            return self.net(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    module = Module()
    limited(module.net, 3, times=2)  # of 10 samples and of 5
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[MemoryCallback(protect="always", grow_after=2)],
    )  # fmt: skip
    data = torch.utils.data.TensorDataset(torch.randn(120, 6))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=10))
    assert 2 in sizes and sizes[-2:] == [10, 10], sizes


def test_lightning_refuses_accumulation():
    lightning = pytest.importorskip("lightning.pytorch")
    from oomph.lightning import MemoryCallback

    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, accumulate_grad_batches=2,
        callbacks=[MemoryCallback()], enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 1)

        def training_step(self, batch, index):
            return self.net(batch).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(oomph.Refused, match="accumulate_grad_batches=1"):
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(4, 2)))


def unless_checkpointed(module, block):
    """Fail until `block` is checkpointed: not even one sample fits without."""
    forward = module.forward

    def guarded(*args, **kwargs):
        if not is_checkpointed(block):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return forward(*args, **kwargs)

    module.forward = guarded


def test_hugging_face_single_samples_pull_a_rung(tmp_path, caplog):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from oomph.huggingface import MemoryCallback

    def train(limited):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=4, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
        ids = torch.randint(0, 50, (6, 12), generator=torch.Generator().manual_seed(1))
        data = [{"input_ids": row, "labels": row} for row in ids]
        args = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=1, max_steps=3, learning_rate=1e-2, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=args, train_dataset=data)
        callback = MemoryCallback(trainer)
        trainer.add_callback(callback)
        if limited:
            unless_checkpointed(model, model.transformer.h[1])
            trainer._signature_columns = ["input_ids", "labels"]
        trainer.train()
        return model, callback

    plain, _ = train(False)
    with caplog.at_level("WARNING", "oomph"):
        model, callback = train(True)
    assert len(callback.errors) == 2
    assert "continuing with checkpoint GPT2LMHeadModel.transformer.h[0:2]" in caplog.text
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_lightning_single_samples_pull_a_rung():
    lightning = pytest.importorskip("lightning.pytorch")
    from oomph.lightning import MemoryCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                *(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh()) for _ in range(4))
            )

        def training_step(self, batch, index):
            return self.net(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def train(limited):
        torch.manual_seed(0)
        module, callback = Module(), MemoryCallback()
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[callback],
        )  # fmt: skip
        if limited:
            unless_checkpointed(module.net, module.net[1])
        data = torch.utils.data.TensorDataset(torch.randn(4, 6))
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=1))
        return module, callback

    plain, _ = train(False)
    module, callback = train(True)
    assert len(callback.errors) == 2
    for a, b in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_wrong_words_for_coupled():
    from oomph._training.batch_shrinker import BatchShrinker

    with pytest.raises(ValueError, match='"refuse" or "warn"'):
        BatchShrinker(None, "allow", "batch")
