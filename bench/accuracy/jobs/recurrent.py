"""LSTM, GRU and plain recurrent networks.

`python recurrent.py NAME` as in training.py.
"""

from builders import module
from training import main


def lstm():
    def build():
        import torch
        from torch import nn

        class LM(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(33278, 650)
                s.r = nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
                s.o = nn.Linear(650, 33278)

            def forward(s, x):
                return s.o(s.r(s.e(x))[0])

        m = LM().cuda()

        def batch():
            return torch.randint(0, 33278, (64, 128), device="cuda")

        return m, batch, lambda b: nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten())

    return dict(build=build, opt="sgd", amp=None)


def recurrent(kind, amp=None, **kw):
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(20000, 256)
                s.r = getattr(nn, kind)(256, 384, batch_first=True, **kw)
                s.o = nn.Linear(384 * (2 if kw.get("bidirectional") else 1), 20)

            def forward(s, x):
                return s.o(s.r(s.e(x))[0][:, -1])

        return M()

    def batch(torch):
        return torch.randint(0, 20000, (96, 200), device="cuda"), torch.randint(
            0, 20, (96,), device="cuda"
        )

    return module(
        make, batch, lambda torch, m, b: torch.nn.functional.cross_entropy(m(b[0]), b[1]), amp=amp
    )


def attention_seq2seq():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.e = nn.Embedding(8000, 256)
                s.r = nn.GRU(256, 512, batch_first=True, bidirectional=True)
                s.c = nn.GRUCell(256 + 1024, 512)
                s.q = nn.Linear(512, 1024)
                s.o = nn.Linear(1536, 8000)

            def forward(s, a, b):
                k, h = s.r(s.e(a))
                h = h[0]
                out = []
                for t in range(b.shape[1]):
                    w = torch.softmax(torch.einsum("bd,btd->bt", s.q(h), k), 1)
                    c = torch.einsum("bt,btd->bd", w, k)
                    h = s.c(torch.cat([s.e(b[:, t]), c], 1), h)
                    out.append(s.o(torch.cat([h, c], 1)))
                return torch.stack(out, 1)

        return M()

    return module(
        make,
        lambda torch: (
            torch.randint(0, 8000, (64, 60), device="cuda"),
            torch.randint(0, 8000, (64, 30), device="cuda"),
        ),
        lambda torch, m, b: torch.nn.functional.cross_entropy(m(*b).flatten(0, 1), b[1].flatten()),
    )


JOBS = {
    "lstm_lm": lambda: lstm(),
    "gru_bi_b96": lambda: recurrent("GRU", num_layers=2, bidirectional=True, dropout=0.2),
    "lstm_fp16_b96": lambda: recurrent("LSTM", amp="fp16", num_layers=3, dropout=0.1),
    "rnn_tanh_b96": lambda: recurrent("RNN", num_layers=1),
    "attention_seq2seq_b64": attention_seq2seq,
}

if __name__ == "__main__":
    main(JOBS)
