"""Speech recognition.

`python speech.py NAME` as in training.py.
"""

from builders import hf, module
from training import main


def whisper():
    def build():
        import torch, transformers as T

        c = T.WhisperConfig(
            use_cache=False,
            d_model=384,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
        )
        with torch.device("cuda"):
            m = T.WhisperForConditionalGeneration(c).train()
        batch = lambda: dict(
            input_features=torch.randn(8, 80, 3000, device="cuda"),
            labels=torch.randint(0, 51000, (8, 200), device="cuda"),
        )
        return m, batch, lambda b: m(**b).loss

    return dict(build=build, opt="adamw", amp="bf16")


def speech_ctc():
    def make(torch):
        from torch import nn

        class M(nn.Module):
            def __init__(s):
                super().__init__()
                s.c = nn.Sequential(
                    nn.Conv1d(80, 256, 5, 2, 2), nn.GELU(), nn.Conv1d(256, 256, 5, 2, 2), nn.GELU()
                )
                s.r = nn.GRU(256, 256, 3, bidirectional=True, batch_first=True, dropout=0.1)
                s.o = nn.Linear(512, 64)

            def forward(s, x):
                return s.o(s.r(s.c(x).transpose(1, 2))[0]).log_softmax(-1).transpose(0, 1)

        return M()

    def loss(torch, m, b):
        p = m(b[0])
        n = torch.full((b[0].shape[0],), p.shape[0], dtype=torch.long)
        return torch.nn.functional.ctc_loss(p, b[1], n, torch.full_like(n, b[1].shape[1]))

    return module(
        make,
        lambda torch: (
            torch.randn(32, 80, 800, device="cuda"),
            torch.randint(1, 64, (32, 30), device="cuda"),
        ),
        loss,
    )


def speech():
    def batch(torch, c):
        return dict(
            input_values=torch.randn(4, 64000, device="cuda"),
            labels=torch.randint(1, 30, (4, 40), device="cuda"),
        )

    return hf(
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        batch,
        amp=None,
        num_hidden_layers=6,
        mask_time_prob=0.0,
        layerdrop=0.0,
    )


JOBS = {
    "speech_ctc_b32": speech_ctc,
    "hf_whisper_b8": whisper,
    "wav2vec2_b4": speech,
}

if __name__ == "__main__":
    main(JOBS)
