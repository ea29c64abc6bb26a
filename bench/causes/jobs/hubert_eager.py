"""HuBERT learns emotions from minutes of speech, with the eager attention that was asked for."""

import os

import torch
from transformers import HubertConfig, HubertModel

HOW = "sdpa" if os.environ.get("MENDED") else "eager"
seconds = 60


class Emotions(torch.nn.Module):
    def __init__(self):
        super().__init__()
        config = HubertConfig(
            hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1024,
            conv_dim=(64,) * 7, feat_extract_norm="layer", do_stable_layer_norm=True,
            attn_implementation=HOW, mask_time_prob=0.0, layerdrop=0.0,
        )  # fmt: skip
        self.speech = HubertModel(config)
        self.speech.feature_extractor.requires_grad_(False)
        self.head = torch.nn.Linear(384, 7)

    def forward(self, wave):
        return self.head(self.speech(wave).last_hidden_state.mean(1))


net = Emotions().cuda()
adam = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 2e-5)
for _ in range(3):
    wave, emotion = torch.randn(1, seconds * 16000).cuda(), torch.randint(0, 7, (1,)).cuda()
    adam.zero_grad()
    torch.nn.functional.cross_entropy(net(wave), emotion).backward()
    adam.step()
