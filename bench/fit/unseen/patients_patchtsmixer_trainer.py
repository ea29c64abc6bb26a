"""Vital signs of patients ahead: PatchTSMixer with channels mixed and gated attention, Trainer in fp32 with a callback that stops on a flat loss, validation once."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    PatchTSMixerConfig,
    PatchTSMixerForPrediction,
    Trainer,
    TrainingArguments,
)

SIGNS = 24  # heart rate, pressures, saturation, drugs, ...
PAST, AHEAD = 512, 96


class Ward(Dataset):
    """Slow rhythms with a day's period, sampled every five minutes, one noise for all signs."""

    def __init__(self, patients, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(PAST + AHEAD)[:, None] / 288 * 2 * torch.pi
        phase = torch.rand(patients, 1, SIGNS, generator=g) * 6.28
        noise = torch.randn(patients, PAST + AHEAD, 1, generator=g)
        self.values = torch.sin(t + phase) + 0.1 * noise

    def __len__(self):
        return len(self.values)

    def __getitem__(self, i):
        return {"past_values": self.values[i, :PAST], "future_values": self.values[i, PAST:]}


def main():
    config = PatchTSMixerConfig(
        context_length=PAST,
        prediction_length=AHEAD,
        patch_length=16,
        patch_stride=8,
        num_input_channels=SIGNS,
        d_model=192,
        expansion_factor=3,
        num_layers=6,
        mode="mix_channel",
        gated_attn=True,
        scaling="std",
        dropout=0.1,
    )
    model = PatchTSMixerForPrediction(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out,
            max_steps=5,
            per_device_train_batch_size=30,
            per_device_eval_batch_size=30,
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=5,
            save_strategy="steps",
            save_steps=5,
            save_only_model=True,
            load_best_model_at_end=False,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            label_names=["future_values"],
            prediction_loss_only=True,
            logging_steps=1,
            report_to="none",
        )
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Ward(320, seed=0),
            eval_dataset=Ward(64, seed=1),
            callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
        )
        trainer.train()


main()
