# market stall videos <-> captions, X-CLIP (cross-frame attention + prompts made from the video)
# own loop, fp32 w/ tf32, logit scale clamped, text tower slower than the rest

import math
import os

import torch
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import XCLIPConfig, XCLIPModel, XCLIPTextConfig, XCLIPVisionConfig

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True

STEPS = int(os.environ.get("JOB_STEPS", "5"))
BATCH = 20
FRAMES = 8
WORDS = 32
EOS = 8191


# a few long recordings, clips are cut out of them
RECORDINGS = torch.randint(0, 256, (4, 64, 3, 224, 224), dtype=torch.uint8)


def get_batch(device, n=BATCH):
    which, start = torch.randint(0, 4, (n,)), torch.randint(0, 64 - FRAMES, (n,))
    clips = [RECORDINGS[w, s : s + FRAMES] for w, s in zip(which.tolist(), start.tolist())]
    video = torch.stack(clips).to(device).float().div_(127.5).sub_(1.0)
    ids = torch.randint(3, 8000, (n, WORDS))
    mask = torch.ones_like(ids)
    for row in range(n):
        end = 8 + row % (WORDS - 9)
        ids[row, end] = EOS  # argmax of ids is where the text ends
        ids[row, end + 1 :] = 0
        mask[row, end + 1 :] = 0
    return video, ids.to(device), mask.to(device)


def make_model():
    vision = XCLIPVisionConfig(
        image_size=224,
        patch_size=16,
        num_frames=FRAMES,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        mit_hidden_size=512,
        mit_intermediate_size=2048,
        mit_num_attention_heads=8,
        mit_num_hidden_layers=1,
        drop_path_rate=0.1,
    )
    text = XCLIPTextConfig(
        vocab_size=8192,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        max_position_embeddings=WORDS,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    cfg = XCLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=512
    )
    return XCLIPModel(cfg)


@torch.no_grad()
def recall_at_1(model, device):
    model.eval()
    video, ids, mask = get_batch(device)
    out = model(input_ids=ids, pixel_values=video, attention_mask=mask)
    hit = out.logits_per_video.argmax(1) == torch.arange(len(ids), device=device)
    model.train()
    return hit.float().mean().item()


if __name__ == "__main__":
    torch.manual_seed(1)
    device = torch.device("cuda")
    model = make_model().to(device).train()

    text_side = [p for n, p in model.named_parameters() if n.startswith("text_model")]
    others = [p for n, p in model.named_parameters() if not n.startswith("text_model")]
    opt = AdamW(
        [{"params": text_side, "lr": 8e-7}, {"params": others, "lr": 8e-6}],
        betas=(0.9, 0.98),
        weight_decay=1e-3,
    )
    warm, total = 3, 500
    sched = LambdaLR(
        opt,
        lambda s: (
            (s + 1) / warm if s < warm else 0.5 * (1 + math.cos(math.pi * (s - warm) / total))
        ),
    )

    for step in range(STEPS):
        video, ids, mask = get_batch(device)
        out = model(input_ids=ids, pixel_values=video, attention_mask=mask, return_loss=True)
        opt.zero_grad(set_to_none=True)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        print("step", step, "loss", round(out.loss.item(), 4))
        if step % 5 == 4:
            print("R@1", recall_at_1(model, device))
