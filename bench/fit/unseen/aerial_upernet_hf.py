"""Land cover from the air: UperNet over ConvNeXt (transformers), ignored pixels, polynomial decay, bf16."""

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

NUM_CLASSES = 9
TOTAL = 7


class Crops(IterableDataset):
    def __iter__(self):
        while True:
            mask = torch.randint(0, NUM_CLASSES, (32, 32)).repeat_interleave(12, 0)
            mask = mask.repeat_interleave(12, 1)
            mask[:8] = 255
            yield torch.randn(3, 384, 384), mask


def build():
    backbone = ConvNextConfig(
        hidden_sizes=[96, 192, 384, 768],
        depths=[3, 3, 9, 3],
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    config = UperNetConfig(
        backbone_config=backbone,
        hidden_size=256,
        num_labels=NUM_CLASSES,
        auxiliary_in_channels=384,
        loss_ignore_index=255,
    )
    return UperNetForSemanticSegmentation(config).cuda().train()


def main():
    torch.manual_seed(0)
    model = build()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-5, weight_decay=0.01)
    sched = torch.optim.lr_scheduler.PolynomialLR(opt, total_iters=TOTAL, power=1.0)
    loader = iter(DataLoader(Crops(), batch_size=8))
    for it in range(TOTAL):
        pixels, labels = next(loader)
        pixels, labels = pixels.cuda(), labels.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        if it % 2 == 0:
            print(f"iter {it} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
