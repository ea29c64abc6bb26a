"""Distillation, moving averages, frozen backbones, perceptual losses."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

device = "cuda"


def distill(loader, student, teacher):
    student, teacher = student.to(device), teacher.to(device)
    teacher.eval()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        t = teacher(x)  # OOM206
        loss = F.kl_div(F.log_softmax(student(x), 1), F.softmax(t, 1))
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def distill_detached(loader, student, teacher):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        t = teacher(x).detach()  # OOM207
        loss = F.mse_loss(student(x), t)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def mutual(loader, model_a, model_b):
    optimizer_a = torch.optim.SGD(model_a.parameters(), lr=0.1)
    optimizer_b = torch.optim.SGD(model_b.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        a, b = model_a(x), model_b(x)
        loss_a = F.cross_entropy(a, y) + F.mse_loss(a, b.detach())
        loss_b = F.cross_entropy(b, y) + F.mse_loss(b, a.detach())
        optimizer_a.zero_grad()  # OOM416
        loss_a.backward()
        optimizer_a.step()
        optimizer_b.zero_grad()  # OOM416
        loss_b.backward()
        optimizer_b.step()


def frozen_backbone(loader):
    backbone = torchvision.models.resnet50(pretrained=True).to(device)
    backbone.eval()
    head = nn.Linear(1000, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        features = backbone(x)  # OOM206
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def frozen_by_flag(loader):
    backbone = torchvision.models.resnet50(pretrained=True).to(device)
    for p in backbone.parameters():
        p.requires_grad = False
    head = nn.Linear(1000, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(head(backbone(x)), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def perceptual(loader, generator):
    vgg = torchvision.models.vgg19(pretrained=True).features.to(device).eval()
    optimizer = torch.optim.Adam(generator.parameters())
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = generator(x)
        loss = F.l1_loss(vgg(out), vgg(y).detach())
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def moving_average(loader, model):
    ema = copy.deepcopy(model)
    for p in ema.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.mse_loss(model(x), ema(x))
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def all_parameters(loader, encoder, decoder):
    params = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.Adam(params)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        z = encoder(x)
        loss = F.mse_loss(decoder(z), y)
        optimizer.zero_grad()  # OOM416
        loss.backward()
        optimizer.step()


def meta_teacher(loader, teacher, student, t_optimizer, s_optimizer):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        t = teacher(x)
        loss = F.cross_entropy(t, y)
        t_optimizer.zero_grad()  # OOM416
        loss.backward()
        t_optimizer.step()
