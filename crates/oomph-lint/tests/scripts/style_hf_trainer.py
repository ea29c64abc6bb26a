"""A subclass of the Trainer of transformers, and scripts with accelerate."""
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, Trainer


class WeightedTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.aux_total = 0.0
        self.aux_seen = 0.0

    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(**inputs)
        loss = outputs.loss
        self.aux_total += loss  # OOM101
        self.aux_seen += loss.detach()
        return (loss, outputs) if return_outputs else loss


def main(train_loader, eval_loader):
    accelerator = Accelerator()
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader
    )
    for epoch in range(3):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_loader):
            with accelerator.accumulate(model):
                outputs = model(**batch)  # OOM303
                loss = outputs.loss
                total_loss += loss  # OOM101
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        losses = []
        for batch in eval_loader:
            with torch.no_grad():
                outputs = model(**batch)
            losses.append(accelerator.gather(outputs.loss.repeat(8)))
        print(torch.cat(losses).mean())


def evaluate(model, eval_loader, accelerator):
    model.eval()
    for batch in eval_loader:
        outputs = model(**batch)  # OOM201
        accelerator.print(outputs.logits.argmax(-1))
