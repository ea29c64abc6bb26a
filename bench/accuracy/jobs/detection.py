"""Detection and keypoint models of torchvision, random weights. How many boxes survive depends on values."""

import torch
import torchvision

from job import device, job, main, pick, small

models = torchvision.models.detection


def made(name, **more):
    if small and not name.startswith("ssd"):
        more.update(min_size=96, max_size=160)
    return getattr(models, name)(weights=None, weights_backbone=None, **more).to(device)


def targets(count, height, width, classes, seed, keypoints=0, masks=False):
    """Boxes with labels, and what else the model learns, of one image."""
    g = torch.Generator().manual_seed(seed)
    start = torch.rand(count, 2, generator=g) * torch.tensor([width, height]) * 0.6
    side = torch.rand(count, 2, generator=g) * torch.tensor([width, height]) * 0.3 + 8
    boxes = torch.cat([start, start + side], 1)
    out = dict(boxes=boxes, labels=torch.randint(1, classes, (count,), generator=g))
    if keypoints:
        inside = torch.rand(count, keypoints, 2, generator=g) * side[:, None] + start[:, None]
        out["keypoints"] = torch.cat([inside, torch.ones(count, keypoints, 1)], 2)
    if masks:
        out["masks"] = (torch.rand(count, height, width, generator=g) > 0.5).to(torch.uint8)
    return {k: v.to(device) for k, v in out.items()}


def train(model, sizes, batch, classes, amp=None, objects=6, optimizer=None, **more):
    """Trains on images of the given sizes (height, width), one pair of sizes a step."""
    model.train()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for step, (height, width) in enumerate(sizes):
        height, width = pick(height, height // 5), pick(width, width // 5)
        images, wanted = [], []
        for i in range(pick(batch, 2)):
            images.append(torch.rand(3, height, width, device=device))
            wanted.append(targets(objects, height, width, classes, 10 * step + i, **more))
        with torch.autocast(device, dtype=amp or torch.bfloat16, enabled=amp is not None):
            loss = sum(model(images, wanted).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


@job()
def keypoint_rcnn_training():
    model = made("keypointrcnn_resnet50_fpn", num_classes=2, num_keypoints=17)
    yield from train(model, [(480, 640)] * 4, 4, 2, keypoints=17)


@job()
def fcos_multi_scale_training():
    """No anchors; images of another size in each step."""
    model = made("fcos_resnet50_fpn", num_classes=20, min_size=480, max_size=800)
    yield from train(model, [(480, 640), (640, 480), (400, 800), (512, 512)], 6, 20)


@job()
def ssd300_training():
    model = made("ssd300_vgg16", num_classes=21)
    yield from train(model, [(300, 300)] * 4, 24, 21, objects=4)


@job()
def ssdlite_training_bf16():
    model = made("ssdlite320_mobilenet_v3_large", num_classes=21)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    yield from train(
        model, [(320, 320)] * 4, 48, 21, amp=torch.bfloat16, objects=3, optimizer=optimizer
    )


@job()
def retinanet_v2_training_bf16():
    model = made("retinanet_resnet50_fpn_v2", num_classes=30, min_size=512, max_size=768)
    yield from train(model, [(512, 640)] * 4, 6, 30, amp=torch.bfloat16, objects=10)


@job()
def mask_rcnn_v2_training():
    model = made("maskrcnn_resnet50_fpn_v2", num_classes=10, min_size=480, max_size=640)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    yield from train(
        model, [(480, 640), (480, 600), (400, 640)], 3, 10, masks=True, optimizer=optimizer
    )


@job()
def fcos_inference_video_sizes():
    """Frames one at a time, scores and boxes after non-maximum suppression."""
    model = made("fcos_resnet50_fpn", num_classes=91).eval()
    with torch.inference_mode():
        for height, width in ((720, 1280), (1080, 1920), (480, 854), (1080, 1920)):
            height, width = pick(height, height // 6), pick(width, width // 6)
            found = model([torch.rand(3, height, width, device=device) for _ in range(pick(4, 1))])
            yield len(found[0]["boxes"].cpu())


if __name__ == "__main__":
    main()
