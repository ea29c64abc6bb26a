"""Which of two sentences is the better one? Every word is masked in turn; scores for all words at all places are made, and one is looked at."""

import itertools
import os

import torch
from transformers import BertConfig, BertForMaskedLM

MENDED = os.environ.get("MENDED")
MASK, WORDS = 103, 119_547  # as in multilingual BERT
torch.manual_seed(5)

config = BertConfig(
    vocab_size=WORDS,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=64,
)
with torch.device("cuda"):
    model = BertForMaskedLM(config).eval()

# Pairs that differ in one agreement, as in BLiMP: (phenomenon, length).
PAIRS = list(itertools.product(("subject and verb", "reflexives", "negation"), (36, 40, 44)))


def pair(length):
    """The ids of an acceptable sentence, and of one in which a word is wrong."""
    good = torch.randint(1000, WORDS, (length,))
    bad = good.clone()
    bad[length // 2] = torch.randint(1000, WORDS, ()).item()
    return good, bad


@torch.inference_mode()
def pseudo_likelihood(sentence):
    """The sum over all words of their logarithmic likelihood, given all others."""
    n = len(sentence)
    copies = sentence.repeat(n, 1)
    copies.fill_diagonal_(MASK)
    places = torch.arange(n, device="cuda")
    ids = sentence.cuda()
    if MENDED:
        states = model.bert(copies.cuda()).last_hidden_state[places, places]
        scores = model.cls(states)
    else:
        scores = model(input_ids=copies.cuda()).logits.log_softmax(-1)[places, places]
    return scores.log_softmax(-1)[places, ids].sum().item()


tally = {}
for phenomenon, length in PAIRS:
    good, bad = (pseudo_likelihood(sentence) for sentence in pair(length))
    tally.setdefault(phenomenon, []).append(good > bad)

for phenomenon, right in tally.items():
    print(f"{phenomenon:20} {100 * sum(right) / len(right):.0f} %")
