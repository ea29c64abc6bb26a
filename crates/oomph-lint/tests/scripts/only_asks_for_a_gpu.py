"""Asks whether there is a GPU, and uses none. An acceleration is no accelerator."""
import torch

torch.manual_seed(0)
if torch.cuda.is_available():
    torch.cuda.manual_seed_all(0)


def step(actor, state, acceleration, optimizer):
    value = actor(state)
    loss = (value - acceleration).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def restore(actor):
    torch.save(actor.state_dict(), "actor.pth")
    actor.load_state_dict(torch.load("actor.pth"))
