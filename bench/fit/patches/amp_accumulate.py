import torch
import torch.nn as nn
import timm
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

ACCUM = 2
model = timm.create_model("convnext_atto", num_classes=30).cuda()
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = GradScaler()
dataset = TensorDataset(torch.randn(192, 3, 128, 128), torch.randint(0, 30, (192,)))
train_loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)


def train(n_epochs):
    for epoch in range(n_epochs):
        for step, batch in enumerate(train_loader):
            images, labels = (t.cuda(non_blocking=True) for t in batch)
            with autocast():
                logits = model(images)
                loss = loss_fn(logits, labels) / ACCUM
            scaler.scale(loss).backward()
            if (step + 1) % ACCUM == 0:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    train(2)
