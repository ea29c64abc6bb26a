"""timm's checkpointing is switched on; but a feature is taken after each block, by a loop of our own."""

import os

import timm
import timm.loss
import timm.optim
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class Pyramid(nn.Module):
    """Classifies by the class tokens of all depths."""

    def __init__(self, classes=100):
        super().__init__()
        self.vit = timm.create_model("deit_small_patch16_224", num_classes=0, drop_path_rate=0.1)
        self.vit.set_grad_checkpointing(True)
        self.head = nn.Linear(12 * 384, classes)

    def forward(self, images):
        vit = self.vit
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(images)))
        tokens = []
        for block in vit.blocks:
            x = checkpoint(block, x, use_reentrant=False) if MENDED else block(x)
            tokens.append(vit.norm(x[:, 0]))
        return self.head(torch.cat(tokens, 1))


model = Pyramid().cuda().train()
groups = timm.optim.param_groups_weight_decay(model, 0.05)
optimizer = torch.optim.AdamW(groups, lr=5e-4)
criterion = timm.loss.LabelSmoothingCrossEntropy(0.1)
for step in range(3):
    images, labels = torch.randn(40, 3, 224, 224, device="cuda"), torch.randint(100, (40,)).cuda()
    optimizer.zero_grad()
    criterion(model(images), labels).backward()
    optimizer.step()
