"""A GAN whose fakes have one name in both steps, and that draws samples now and then."""
import torch
from torchvision.utils import make_grid, save_image

from nets import Generator, Discriminator

device = torch.device("cuda")


def train(looper, loss_fn, batch_size):
    net_G = Generator(128).to(device)
    net_D = Discriminator().to(device)
    optim_G = torch.optim.Adam(net_G.parameters())
    optim_D = torch.optim.Adam(net_D.parameters())
    sample_z = torch.randn(batch_size, 128).to(device)
    for step in range(100):
        with torch.no_grad():
            fake = net_G(torch.randn(batch_size, 128).to(device))
        real = next(looper).to(device)
        optim_D.zero_grad()
        loss_fn(net_D(real), net_D(fake)).backward()
        optim_D.step()
        optim_G.zero_grad()
        loss_fn(net_D(net_G(torch.randn(batch_size, 128).to(device)))).backward()  # OOM113
        optim_G.step()
        if step % 10 == 0:
            fake = net_G(sample_z).cpu()  # OOM205
            save_image((make_grid(fake) + 1) / 2, "sample.png")
        if step == 99:
            torch.save({"net_G": net_G.state_dict()}, "last.pt")


def generate(flags):
    net_G = Generator(128).to(device)
    net_G.load_state_dict(torch.load(flags.pretrain)["net_G"])  # OOM505
    return net_G


def evaluate(build_model, networks, args, test_loader):
    model = build_model(args).to(device)
    model.eval()
    for x in test_loader:
        print(model(x.to(device)).argmax(1))  # OOM207
    net = networks[args.name](10).cuda()
    net.eval()
    for x in test_loader:
        print(net(x.to(device)).argmax(1))  # OOM207
