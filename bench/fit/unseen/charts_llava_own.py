"""Questions about charts: a frozen CLIP vision tower in bf16, a projector and a Llama that are trained, answers only in the loss."""

import torch
import torch.nn as nn
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM


class ChartReader(nn.Module):
    def __init__(self, vision, language):
        super().__init__()
        self.vision = vision.requires_grad_(False).eval()
        self.projector = nn.Sequential(
            nn.Linear(vision.config.hidden_size, language.config.hidden_size),
            nn.GELU(),
            nn.Linear(language.config.hidden_size, language.config.hidden_size),
        )
        self.language = language

    def forward(self, pixels, prompt, answer):
        with torch.no_grad():
            states = self.vision(pixel_values=pixels, output_hidden_states=True).hidden_states
            patches = states[-2][:, 1:]
        embed = self.language.get_input_embeddings()
        seen = self.projector(patches.to(self.projector[0].weight.dtype))
        ids = torch.cat([prompt, answer], 1)
        inputs = torch.cat([seen.to(embed.weight.dtype), embed(ids)], 1)
        ignored = torch.full(
            (len(ids), seen.shape[1] + prompt.shape[1]), -100, device=ids.device, dtype=ids.dtype
        )
        labels = torch.cat([ignored, answer], 1)
        return self.language(inputs_embeds=inputs, labels=labels).loss


def build(device):
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        vision = CLIPVisionModel(
            CLIPVisionConfig(
                hidden_size=1024,
                intermediate_size=4096,
                num_hidden_layers=8,
                num_attention_heads=16,
                image_size=336,
                patch_size=14,
            )
        )
        language = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=32064,
                hidden_size=1536,
                intermediate_size=4096,
                num_hidden_layers=8,
                num_attention_heads=12,
                num_key_value_heads=4,
                use_cache=False,
            )
        )
        reader = ChartReader(vision, language)
    torch.set_default_dtype(torch.float32)
    return reader


def main():
    device = "cuda"
    reader = build(device)
    trained = [p for p in reader.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.0)
    for step in range(5):
        pixels = torch.rand(6, 3, 336, 336, dtype=torch.bfloat16).to(device)
        prompt = torch.randint(3, 32000, (6, 48)).to(device)
        answer = torch.randint(3, 32000, (6, 80)).to(device)
        loss = reader(pixels, prompt, answer)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
