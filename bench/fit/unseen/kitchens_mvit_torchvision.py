"""What hands do in kitchens: torchvision's MViT v2-S on clips of sixteen frames, verbs and nouns, fp16, GradScaler, clips accumulated."""

import torch
from torch import nn
from torchvision.models.video import mvit_v2_s


class VerbNoun(nn.Module):
    def __init__(self, verbs, nouns):
        super().__init__()
        self.trunk = mvit_v2_s(weights=None, stochastic_depth_prob=0.1)
        self.trunk.head = nn.Identity()
        self.verb = nn.Linear(768, verbs)
        self.noun = nn.Linear(768, nouns)

    def forward(self, clip):
        feature = self.trunk(clip)
        return {"verb": self.verb(feature), "noun": self.noun(feature)}


class ClipStream:
    """Clips as bytes from a decoder: B x T x H x W x C."""

    def __init__(self, batch):
        self.batch = batch

    def __next__(self):
        clip = torch.randint(0, 256, (self.batch, 16, 224, 224, 3), dtype=torch.uint8)
        labels = {
            "verb": torch.randint(0, 97, (self.batch,)),
            "noun": torch.randint(0, 300, (self.batch,)),
        }
        return clip, labels

    def __iter__(self):
        return self


def normalise(clip):
    clip = clip.permute(0, 4, 1, 2, 3).float() / 255
    return (clip - 0.45) / 0.225


ACCUMULATE, STEPS = 2, 4
model = VerbNoun(97, 300).cuda()
scaler = torch.amp.GradScaler()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.05)
cross_entropy = nn.CrossEntropyLoss(label_smoothing=0.1)

done = 0
for i, (clip, labels) in enumerate(ClipStream(3), 1):
    with torch.autocast("cuda", torch.float16):
        answer = model(normalise(clip.cuda()))
        loss = sum(cross_entropy(answer[k], labels[k].cuda()) for k in answer)
    scaler.scale(loss / ACCUMULATE).backward()
    if i % ACCUMULATE == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        print(f"step {done} loss {loss.item():.3f}")
        if done == STEPS:
            break
