"""A flag that is handed on and only ever `False`, and one that nothing reads."""
import torch


def place(x, use_cuda=False):
    if use_cuda:
        x = x.cuda()
    return x


def train(model, loader, optimizer, use_cuda):
    for x in loader:
        loss = model(place(x, use_cuda)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader, gpu=False):
    model.eval()
    return [model(x) for x in loader]


if __name__ == "__main__":
    use_cuda = False
    net = torch.nn.Linear(4, 4)
    if use_cuda:
        net.cuda()
    train(net, [], torch.optim.SGD(net.parameters()), use_cuda)
    evaluate(net, [])
