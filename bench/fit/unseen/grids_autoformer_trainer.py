"""Loads of power grids by Autoformer (decomposition, autocorrelation by FFT) with Trainer and an own compute_loss, student-t likelihood, RAdam."""

import tempfile

import torch
from transformers import (
    AutoformerConfig,
    AutoformerForPrediction,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

HISTORY, HORIZON, LAGS = 336, 96, [1, 2, 3, 24, 48, 168]

config = AutoformerConfig(
    prediction_length=HORIZON,
    context_length=HISTORY,
    lags_sequence=LAGS,
    num_time_features=4,
    num_static_categorical_features=1,
    cardinality=[321],
    embedding_dimension=[16],
    d_model=192,
    encoder_layers=3,
    decoder_layers=2,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=768,
    decoder_ffn_dim=768,
    moving_average=25,
    autocorrelation_factor=2,
)


class Grids(torch.utils.data.Dataset):
    past = HISTORY + max(LAGS)

    def __len__(self):
        return 1024

    def __getitem__(self, i):
        t = torch.arange(self.past + HORIZON) + i
        clock = torch.stack([torch.sin(t / p) for p in (3.8, 26.7, 116.0, 1394.0)], -1)
        load = 5 + clock.sum(-1) + 0.1 * torch.randn(len(t))
        return {
            "past_values": load[: self.past],
            "past_time_features": clock[: self.past],
            "past_observed_mask": torch.ones(self.past),
            "future_values": load[self.past :],
            "future_time_features": clock[self.past :],
            "static_categorical_features": torch.tensor([i % 321]),
        }


class GridTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        loss = out.loss
        return (loss, out) if return_outputs else loss


model = AutoformerForPrediction(config)
args = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=128,
    max_steps=6,
    logging_steps=3,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    max_grad_norm=1.0,
)
radam = torch.optim.RAdam(model.parameters(), lr=5e-4)
GridTrainer(
    model=model,
    args=args,
    train_dataset=Grids(),
    data_collator=default_data_collator,
    optimizers=(radam, torch.optim.lr_scheduler.ConstantLR(radam, 1.0, 1)),
).train()
