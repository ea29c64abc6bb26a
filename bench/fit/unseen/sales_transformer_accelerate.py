"""Sales of 366 shops: transformers' TimeSeriesTransformer with a Student's t head and lags, accelerate, static and dynamic features, likelihood as loss."""

import numpy as np
import torch
from accelerate import Accelerator
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset
from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

HORIZON, CONTEXT, LAGS = 48, 192, [1, 2, 3, 7, 14, 28, 56]


class ShopWindows(Dataset):
    """Windows cut at random from long series with weekly and yearly seasons."""

    def __init__(self, shops=366, days=1200, windows=2048, seed=4):
        rng = np.random.default_rng(seed)
        t = np.arange(days)
        level = rng.lognormal(3, 0.4, (shops, 1))
        week = 1 + 0.3 * np.sin(2 * np.pi * (t + rng.integers(0, 7, (shops, 1))) / 7)
        year = 1 + 0.2 * np.sin(2 * np.pi * t / 365)
        self.series = torch.tensor(level * week * year + rng.normal(0, 2, (shops, days))).float()
        self.time = torch.tensor(np.stack([t % 7 / 6, t % 365 / 364, np.log1p(t)], 1)).float()
        self.pick = rng.integers(0, [shops, days - self.past - HORIZON], (windows, 2))

    past = CONTEXT + max(LAGS)

    def __len__(self):
        return len(self.pick)

    def __getitem__(self, i):
        shop, start = self.pick[i]
        middle = start + self.past
        return {
            "past_values": self.series[shop, start:middle],
            "past_time_features": self.time[start:middle],
            "past_observed_mask": torch.ones(self.past),
            "static_categorical_features": torch.tensor([shop]),
            "future_values": self.series[shop, middle : middle + HORIZON],
            "future_time_features": self.time[middle : middle + HORIZON],
        }


def main():
    accelerator = Accelerator()
    torch.manual_seed(4)
    config = TimeSeriesTransformerConfig(
        prediction_length=HORIZON,
        context_length=CONTEXT,
        lags_sequence=LAGS,
        num_time_features=3,
        num_static_categorical_features=1,
        cardinality=[366],
        embedding_dimension=[16],
        d_model=256,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        use_cache=False,
    )
    model = TimeSeriesTransformerForPrediction(config)
    optimizer = AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=1e-1)
    loader = DataLoader(ShopWindows(), batch_size=128, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    model.train()
    history = []
    for i, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        history.append(loss.item())
        if i == 5:
            break
    print(history)


if __name__ == "__main__":
    main()
