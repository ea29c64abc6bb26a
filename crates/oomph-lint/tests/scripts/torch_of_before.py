"""Only a PyTorch before 0.5 runs it: what kept a graph there is another matter."""
import torch

model = torch.nn.Linear(8, 2).cuda()


def train(loader, criterion, optimizer):
    for x, y in loader:
        errD_real = criterion(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        errD_real.backward()
        optimizer.step()
        print(errD_real.data[0])


def test(loader):
    model.eval()
    for x, y in loader:
        print(model(x.cuda()))
