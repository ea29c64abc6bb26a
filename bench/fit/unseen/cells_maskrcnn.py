"""The finetuning tutorial of torchvision: Mask R-CNN with new heads, lists of pictures, warm-up by LinearLR, an evaluation."""

import torch
from torchvision import tv_tensors
from torchvision.models.detection import maskrcnn_resnet50_fpn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor


class Cells(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, idx):
        img = torch.zeros(3, 400, 520)
        boxes = torch.tensor([[30.0 + 40 * k, 40.0, 90.0 + 40 * k, 160.0] for k in range(5)])
        masks = torch.zeros(5, 400, 520, dtype=torch.uint8)
        for k, (x0, y0, x1, y1) in enumerate(boxes.int().tolist()):
            masks[k, y0:y1, x0:x1] = 1
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(400, 520)),
            "masks": tv_tensors.Mask(masks),
            "labels": torch.ones(5, dtype=torch.int64),
            "image_id": idx,
            "area": (boxes[:, 3] - boxes[:, 1]) * (boxes[:, 2] - boxes[:, 0]),
            "iscrowd": torch.zeros(5, dtype=torch.int64),
        }  # fmt: skip
        return img, target


def get_model_instance_segmentation(num_classes):
    model = maskrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=480, max_size=640)
    in_features = model.roi_heads.box_predictor.cls_score.in_features
    model.roi_heads.box_predictor = FastRCNNPredictor(in_features, num_classes)
    in_features_mask = model.roi_heads.mask_predictor.conv5_mask.in_channels
    model.roi_heads.mask_predictor = MaskRCNNPredictor(in_features_mask, 256, num_classes)
    return model


def train_one_epoch(model, optimizer, data_loader, device, epoch):
    model.train()
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.001, total_iters=4)
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)
        targets = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()}
            for t in targets
        ]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        lr_scheduler.step()
        print(epoch, {k: round(v.item(), 3) for k, v in loss_dict.items()})


device = torch.device("cuda")
model = get_model_instance_segmentation(2).to(device)
data_loader = torch.utils.data.DataLoader(
    Cells(), batch_size=4, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch))
)
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(params, lr=0.005, momentum=0.9, weight_decay=0.0005)
train_one_epoch(model, optimizer, data_loader, device, 0)
