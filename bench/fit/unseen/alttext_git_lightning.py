"""Alternative texts for web pages: GIT, a vision tower whose tokens stand before the words in one decoder, Lightning with manual optimization, bf16, two rates."""

import lightning as L
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GitConfig, GitForCausalLM, get_constant_schedule_with_warmup

WORDS = 64


class WebImages(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(1000, 30522, (WORDS,), generator=g)
        length = int(torch.randint(12, WORDS, (), generator=g))
        mask = (torch.arange(WORDS) < length).long()
        return {
            "pixel_values": torch.full((3, 224, 224), i / 160),
            "input_ids": ids * mask,
            "attention_mask": mask,
            "labels": ids.masked_fill(mask == 0, -100),
        }


class AltText(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.git = GitForCausalLM(
            GitConfig(
                vision_config={"num_hidden_layers": 10, "image_size": 224, "patch_size": 16},
                num_hidden_layers=6,
                use_cache=False,
            )
        )

    def configure_optimizers(self):
        vision = list(self.git.git.image_encoder.parameters())
        ids = {id(p) for p in vision}
        rest = [p for p in self.git.parameters() if id(p) not in ids]
        opt_vision = torch.optim.AdamW(vision, lr=1e-5)
        opt_text = torch.optim.AdamW(rest, lr=5e-5)
        schedules = [get_constant_schedule_with_warmup(o, 10) for o in (opt_vision, opt_text)]
        return [opt_vision, opt_text], schedules

    def training_step(self, batch, i):
        loss = self.git(**batch).loss
        optimizers = self.optimizers()
        for opt in optimizers:
            opt.zero_grad()
        self.manual_backward(loss)
        for opt, schedule in zip(optimizers, self.lr_schedulers()):
            self.clip_gradients(opt, gradient_clip_val=1.0)
            opt.step()
            schedule.step()
        self.log("loss", loss)
        print(i, loss.item())


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision="bf16-mixed",
        max_epochs=1,
        limit_train_batches=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(AltText(), DataLoader(WebImages(), batch_size=7, shuffle=True))
