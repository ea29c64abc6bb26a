"""A library made the optimizer: it may unscale by itself."""
import fp8
from accelerate.utils import get_grad_scaler


def train(model, optimizer, loader):
    scaler = get_grad_scaler()
    model, optimizer = fp8.initialize(model, optimizer)
    for batch in loader:
        loss = model(**batch).loss
        scaler.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad()
