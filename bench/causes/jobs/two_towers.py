"""A search service puts a large picture tower and a large text tower on one GPU, in fp32."""

import os

import timm
import torch
from transformers import RobertaConfig, RobertaModel

DTYPE = torch.float16 if os.environ.get("MENDED") else torch.float32


class SearchService:
    def __init__(self, device="cuda"):
        self.device = device
        self.pictures = self._load_pictures()
        self.texts = self._load_texts()

    def _load_pictures(self):
        tower = timm.create_model("vit_large_patch16_224", pretrained=False, num_classes=0)
        return tower.to(DTYPE).to(self.device).eval()

    def _load_texts(self):
        config = RobertaConfig(
            vocab_size=50265, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
            intermediate_size=4096,
        )  # fmt: skip
        return RobertaModel(config, add_pooling_layer=False).to(DTYPE).to(self.device).eval()

    @torch.inference_mode()
    def rank(self, query, pictures):
        text = self.texts(query.to(self.device)).last_hidden_state[:, 0]
        seen = self.pictures(pictures.to(self.device, DTYPE))
        return (seen @ text.T).squeeze(-1).argsort(descending=True)


service = SearchService()
order = service.rank(torch.randint(5, 50000, (1, 12)), torch.rand(4, 3, 224, 224))
print(order.shape)
