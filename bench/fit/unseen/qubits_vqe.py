# Ground state of a transverse-field Ising ring with a variational quantum circuit, simulated exactly:
# the whole state vector (2^22 complex amplitudes) goes through every gate and autograd comes back.
import math

import torch

torch.manual_seed(3)
device = "cuda"
QUBITS, LAYERS, STEPS = 22, 4, 3
J, FIELD = 1.0, 0.9
DIM = 2**QUBITS


def rotate_y(state, theta, q):
    s = state.view(2**q, 2, -1)
    c, d = torch.cos(theta / 2), torch.sin(theta / 2)
    zero = c * s[:, 0] - d * s[:, 1]
    one = d * s[:, 0] + c * s[:, 1]
    return torch.stack([zero, one], 1).view(-1)


def rotate_z(state, theta, q):
    half = theta / 2
    phase = torch.stack(
        [torch.polar(torch.ones_like(half), -half), torch.polar(torch.ones_like(half), half)]
    )
    return (state.view(2**q, 2, -1) * phase[None, :, None]).view(-1)


def spins():
    """+1/-1 of every qubit in every basis state, one qubit at a time."""
    index = torch.arange(DIM, device=device)
    for q in range(QUBITS):
        yield q, 1.0 - 2.0 * ((index >> (QUBITS - 1 - q)) & 1).float()


# CZ on all neighbours of the ring is one diagonal of signs; the ZZ part of the energy is a diagonal, too
with torch.no_grad():
    cz = torch.ones(DIM, device=device)
    zz = torch.zeros(DIM, device=device)
    first = before = None
    for q, z in spins():
        if before is None:
            first = z
        else:
            zz += before * z
            cz *= torch.where((before < 0) & (z < 0), -1.0, 1.0)
        before = z
    zz += before * first
    cz *= torch.where((before < 0) & (first < 0), -1.0, 1.0)
    del first, before, z


def circuit(angles):
    state = torch.zeros(DIM, dtype=torch.complex64, device=device)
    state[0] = 1
    for layer in angles:
        for q in range(QUBITS):
            state = rotate_y(state, layer[q, 0], q)
            state = rotate_z(state, layer[q, 1], q)
        state = state * cz
    return state


def energy(state):
    ising = -J * (state.abs().square() * zz).sum()
    flips = 0.0
    for q in range(QUBITS):
        s = state.view(2**q, 2, -1)
        # <X_q> = 2 Re sum conj(s0) s1
        flips = flips + 2 * (s[:, 0].conj() * s[:, 1]).real.sum()
    return ising - FIELD * flips


angles = torch.nn.Parameter(0.1 * math.pi * torch.randn(LAYERS, QUBITS, 2, device=device))
optimizer = torch.optim.Adam([angles], lr=0.05, amsgrad=True)


def closure():
    optimizer.zero_grad()
    e = energy(circuit(angles))
    e.backward()
    return e


for step in range(STEPS):
    e = optimizer.step(closure)
    print(
        f"step {step}: energy per spin {e.item() / QUBITS:.5f}, |grad| {angles.grad.norm().item():.4f}"
    )

with torch.no_grad():
    final = circuit(angles)
    print("norm", final.abs().square().sum().item(), "energy", energy(final).item() / QUBITS)
