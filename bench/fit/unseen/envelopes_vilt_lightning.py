"""Questions about photographed envelopes (how many stamps, which country): ViLT in Lightning, soft answers, gradient accumulation."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import ViltConfig, ViltForQuestionAnswering, get_cosine_schedule_with_warmup

STEPS = int(os.environ.get("JOB_STEPS", "5"))
ANSWERS, WORDS, SIDE, BATCH, ACCUMULATE = 1200, 24, 256, 32, 2


class Envelopes(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(100 + i)
        image = torch.rand(3, 16, 16, generator=g).repeat_interleave(16, 1).repeat_interleave(16, 2)
        ids = torch.randint(1000, 30000, (WORDS,), generator=g)
        length = int(torch.randint(6, WORDS + 1, (), generator=g))
        mask = (torch.arange(WORDS) < length).long()
        answers = torch.zeros(ANSWERS)
        answers[torch.randint(ANSWERS, (3,), generator=g)] = torch.tensor([1.0, 0.6, 0.3])
        return {
            "input_ids": ids * mask,
            "attention_mask": mask,
            "token_type_ids": torch.zeros_like(ids),
            "pixel_values": image * 2 - 1,
            "labels": answers,
        }


class Reader(L.LightningModule):
    def __init__(self):
        super().__init__()
        config = ViltConfig(
            image_size=SIDE,
            patch_size=16,
            hidden_size=768,
            num_hidden_layers=10,
            num_attention_heads=12,
            intermediate_size=3072,
            max_position_embeddings=WORDS,
            num_labels=ANSWERS,
        )
        self.model = ViltForQuestionAnswering(config)

    def training_step(self, batch, index):
        labels = batch.pop("labels")
        logits = self.model(**batch).logits
        loss = F.binary_cross_entropy_with_logits(logits.float(), labels) * ANSWERS
        best = labels.gather(1, logits.argmax(1, keepdim=True)).mean()
        self.log("loss", loss)
        self.log("score", best)
        if index % ACCUMULATE == 0:
            print(f"batch {index} loss {loss.item():.3f} score {best.item():.3f}")
        return loss

    def on_before_optimizer_step(self, optimizer):
        norms = L.pytorch.utilities.grad_norm(self.model.classifier, 2)
        self.log_dict({k: v for k, v in norms.items() if "total" in k})

    def configure_optimizers(self):
        body = [p for n, p in self.named_parameters() if "classifier" not in n]
        optimizer = torch.optim.AdamW(
            [
                {"params": body, "lr": 1e-4},
                {"params": self.model.classifier.parameters(), "lr": 1e-3},
            ],
            weight_decay=0.01,
        )
        schedule = get_cosine_schedule_with_warmup(optimizer, 2, 100)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


L.seed_everything(1)
loader = DataLoader(Envelopes(BATCH * ACCUMULATE * STEPS), batch_size=BATCH, shuffle=True)
L.Trainer(
    accelerator="gpu",
    devices=1,
    max_steps=STEPS,
    accumulate_grad_batches=ACCUMULATE,
    gradient_clip_val=1.0,
    precision="16-mixed",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Reader(), loader)
