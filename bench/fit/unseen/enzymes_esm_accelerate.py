"""Masked residues of enzymes: ESM with rotary positions, accelerate with accumulate(), fp16, a hundredth of the rate for norms."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import EsmConfig, EsmForMaskedLM

MASK, PAD = 32, 1


def proteins(count, longest):
    for _ in range(count):
        length = int(torch.randint(longest // 2, longest - 1, ()))
        yield torch.cat([torch.tensor([0]), torch.randint(4, 24, (length,)), torch.tensor([2])])


class Masker:
    def __init__(self, length, rate=0.15):
        self.length, self.rate = length, rate

    def __call__(self, sequences):
        ids = torch.full((len(sequences), self.length), PAD)
        for row, sequence in zip(ids, sequences):
            row[: len(sequence)] = sequence
        chosen = (torch.rand(ids.shape) < self.rate) & (ids > 3)
        return {
            "input_ids": ids.masked_fill(chosen, MASK),
            "attention_mask": (ids != PAD).long(),
            "labels": ids.masked_fill(~chosen, -100),
        }


def parameter_groups(model, lr):
    norms = [p for n, p in model.named_parameters() if "LayerNorm" in n or "layer_norm" in n]
    seen = {id(p) for p in norms}
    rest = [p for p in model.parameters() if id(p) not in seen]
    return [{"params": rest, "lr": lr}, {"params": norms, "lr": lr / 100, "weight_decay": 0.0}]


def main():
    set_seed(0)
    accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = EsmForMaskedLM(
        EsmConfig(
            vocab_size=33,
            mask_token_id=MASK,
            pad_token_id=PAD,
            hidden_size=640,
            num_hidden_layers=10,
            num_attention_heads=20,
            intermediate_size=2560,
            max_position_embeddings=1026,
            position_embedding_type="rotary",
            token_dropout=True,
            emb_layer_norm_before=False,
            attn_implementation="eager",
        )
    )
    loader = DataLoader(list(proteins(4 * 10, 1024)), batch_size=4, collate_fn=Masker(1024))
    optimizer = torch.optim.AdamW(parameter_groups(model, 4e-4), weight_decay=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    total = 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            total += loss.detach().float()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print("mean loss", total / len(loader))


if __name__ == "__main__":
    main()
