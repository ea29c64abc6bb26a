"""MAML, LBFGS, time steps: loops inside a step, whose sums are meant to keep their graph."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda")


def maml(model, tasks, meta_optimizer, inner_lr):
    for batch in tasks:
        meta_loss = 0
        for support, query in batch:
            weights = list(model.parameters())
            loss = F.mse_loss(model(support[0].to(device)), support[1].to(device))
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            fast = [w - inner_lr * g for w, g in zip(weights, grads)]
            meta_loss += F.mse_loss(model.functional_forward(query[0].to(device), fast), query[1].to(device))
        meta_optimizer.zero_grad()
        meta_loss.backward()
        meta_optimizer.step()


def lbfgs(model, loader):
    optimizer = torch.optim.LBFGS(model.parameters())
    for x, y in loader:
        x, y = x.to(device), y.to(device)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def lbfgs_sum(model, loader):
    optimizer = torch.optim.LBFGS(model.parameters())
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)

        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        total += optimizer.step(closure).item()
    return total


def time_steps(decoder, loader, optimizer, criterion):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        hidden = decoder.init_hidden(x.size(0))
        loss = 0
        outputs = []
        for t in range(y.size(1)):
            out, hidden = decoder(x[:, t], hidden)
            loss += criterion(out, y[:, t])
            outputs.append(out)
        loss.backward()
        optimizer.step()
        print(torch.stack(outputs).argmax(-1))


def style_transfer(content, target, net):
    opt_img = content.clone().to(device).requires_grad_(True)
    optimizer = torch.optim.Adam([opt_img])
    for step in range(500):
        loss = 0
        for layer, gram in target.items():
            loss += F.mse_loss(net(opt_img)[layer], gram)
        optimizer.zero_grad()
        loss.backward()  # OOM112
        optimizer.step()


def language_model(model, batches, criterion, optimizer):
    hidden = model.init_hidden(20)
    for x, y in batches:
        x, y = x.to(device), y.to(device)
        model.zero_grad()
        out, hidden = model(x, hidden)
        loss = criterion(out, y)
        loss.backward(retain_graph=True)
        optimizer.step()


def language_model_lstm(model, loader, criterion, optimizer):
    h, c = model.init_hidden(20)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out, (h, c) = model(x, (h, c))
        loss = criterion(out, y)
        loss.backward(retain_graph=True)
        optimizer.step()


def repackaged(model, loader, criterion, optimizer):
    hidden = model.init_hidden(20)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        hidden = tuple(each.data for each in hidden)
        optimizer.zero_grad()
        out, hidden = model(x, hidden)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()


def repackaged_state(model, loader, criterion, optimizer):
    h, c = model.init_hidden(20)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        h, c = h.detach(), c.detach()
        optimizer.zero_grad()
        out, (h, c) = model(x, (h, c))
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()


def truncated(model, loader, criterion, optimizer):
    state = None
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out, state = model(x, state)
        state = [s.detach() for s in state]
        criterion(out, y).backward()
        optimizer.step()


def accumulate(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()


def accumulate_model(model, loader, optimizer, criterion):
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        model.zero_grad()
        loss = criterion(model(x), y) / 4
        loss.backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
