"""Tools on a bench found by their names: CLIPSeg, its CLIP frozen and in eval mode, its decoder trained with BCE and Dice, RMSprop, two prompts for a picture."""

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import CLIPSegConfig, CLIPSegForImageSegmentation


class Bench(Dataset):
    def __init__(self, n=108, side=352):
        self.n, self.side = n, side

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        prompt = torch.full((2, 12), 49407)
        prompt[:, 0] = 49406
        prompt[:, 1:7] = torch.randint(320, 40000, (2, 6), generator=g)
        y, x = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
        cy, cx, r = torch.randint(60, 250, (3, 2, 1, 1), generator=g)
        mask = ((y - cy) ** 2 + (x - cx) ** 2 < (r / 4) ** 2).float()
        return torch.randn(3, self.side, self.side, generator=g), prompt, mask


def dice_loss(p, t, eps=1.0):
    p, t = p.flatten(1), t.flatten(1)
    return 1 - ((2 * (p * t).sum(1) + eps) / (p.sum(1) + t.sum(1) + eps)).mean()


def iou(p, t):
    p, t = (p > 0.5).flatten(1), (t > 0.5).flatten(1)
    return ((p & t).sum(1) / (p | t).sum(1).clamp(min=1)).mean()


torch.manual_seed(90)
model = CLIPSegForImageSegmentation(
    CLIPSegConfig(
        vision_config={"image_size": 352, "patch_size": 16},
        text_config={"num_hidden_layers": 8},
        reduce_dim=128,
        extract_layers=[3, 6, 9],
    )
).cuda()
for p in model.clip.parameters():
    p.requires_grad = False
decoder = [p for p in model.decoder.parameters() if p.requires_grad]
opt = torch.optim.RMSprop(decoder, lr=1e-4, momentum=0.9)
bce = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0).cuda())

model.train()
model.clip.eval()
step = 0
for picture, prompt, mask in DataLoader(Bench(), batch_size=18, shuffle=True):
    picture = picture.cuda().repeat_interleave(2, 0)
    prompt, mask = prompt.cuda().flatten(0, 1), mask.cuda().flatten(0, 1)
    logits = model(
        pixel_values=picture,
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        interpolate_pos_encoding=True,
    ).logits
    loss = bce(logits, mask) + dice_loss(logits.sigmoid(), mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    print(step, loss.item(), iou(logits.detach().sigmoid(), mask).item())
