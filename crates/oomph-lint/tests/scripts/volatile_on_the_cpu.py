"""One loop moves its batches to the GPU; the other leaves them on the CPU, where its model is."""
import torch
from torch.autograd import Variable

model.eval()
for data, target in valid_loader:
    if cuda:
        data, target = data.cuda(), target.cuda()
    data = Variable(data, volatile=True)  # OOM204
    output = model(data)  # OOM201
    print(output.data.round(), target)

model.eval()
for data, target in valid_loader:
    data = Variable(data, volatile=True)
    output = model2(data)
    print(output.data.round(), target)
