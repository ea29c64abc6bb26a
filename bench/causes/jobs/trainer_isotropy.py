"""A Trainer of our own watches how alike the codes of words become; the figure of each step goes into its history."""

import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import RoFormerConfig, RoFormerForTokenClassification, Trainer, TrainingArguments


class Entities(Dataset):
    def __len__(self):
        return 24 * 45

    def __getitem__(self, i):
        ids = torch.arange(i, i + 256).remainder(1990) + 5
        return {"input_ids": ids, "labels": ids % 9}


class WatchedTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.isotropy = []

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs, output_hidden_states=True)
        codes = torch.nn.functional.normalize(outputs.hidden_states[-1], dim=-1)
        alike = torch.einsum("bic,bjc->bij", codes, codes).square().mean()
        self.isotropy.append(alike.item() if os.environ.get("MENDED") else alike)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


config = RoFormerConfig(
    vocab_size=2000, embedding_size=256, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=512, num_labels=9, max_position_embeddings=256,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    trainer = WatchedTrainer(
        model=RoFormerForTokenClassification(config),
        args=TrainingArguments(
            folder, per_device_train_batch_size=24, num_train_epochs=1, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        ),
        train_dataset=Entities(),
    )  # fmt: skip
    trainer.train()
    print("isotropy at the end:", float(trainer.isotropy[-1]))
