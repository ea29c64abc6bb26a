"""Two optimizers, and only one of them is ever cleared."""
import torch

from networks import Critic, Writer

device = torch.device("cuda")
writer, critic = Writer().to(device), Critic().to(device)
writer_optimizer = torch.optim.Adam(writer.parameters())
critic_optimizer = torch.optim.Adam(critic.parameters())


def train_writer(loader):
    for images, texts in loader:
        writer_optimizer.zero_grad()
        loss = writer(images.to(device), texts.to(device))
        loss.backward()
        writer_optimizer.step()


def train_critic(loader, criterion):
    for images, texts in loader:
        loss = criterion(critic(images.to(device)), texts.to(device))
        loss.backward()
        critic_optimizer.step()  # OOM413
