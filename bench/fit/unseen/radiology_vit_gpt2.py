"""Reports for X-rays: a vision encoder and a GPT-2 decoder with cross attention (VisionEncoderDecoderModel)."""

import torch
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from transformers import (
    GPT2Config,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
)


class Reports(Dataset):
    def __init__(self, n=120, words=128):
        self.n, self.words = n, words

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        gray = torch.rand(1, 224, 224).expand(3, -1, -1)
        text = torch.randint(0, 50256, (self.words,))
        return gray, text


def make_model():
    encoder = ViTConfig(num_hidden_layers=8)
    decoder = GPT2Config(n_layer=8, add_cross_attention=True, is_decoder=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = 50256
    config.pad_token_id = 50256
    model = VisionEncoderDecoderModel(config=config)
    return model


def run(epochs=1, batch_size=20):
    model = make_model().to("cuda")
    loader = DataLoader(Reports(), batch_size=batch_size, shuffle=True, num_workers=0)
    optim = torch.optim.AdamW(
        [
            {"params": model.encoder.parameters(), "lr": 1e-5},
            {"params": model.decoder.parameters(), "lr": 5e-5},
        ]
    )
    for epoch in range(epochs):
        total = 0.0
        for pixels, labels in tqdm(loader, disable=True):
            pixels, labels = pixels.cuda(), labels.cuda()
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = model(pixel_values=pixels, labels=labels).loss
            optim.zero_grad()
            loss.backward()
            optim.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    run()
