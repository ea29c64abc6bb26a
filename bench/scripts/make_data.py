"""Tiny generated data in the formats that public training scripts read: `make_data.py KIND FOLDER`.

Contents are random; shapes, counts and vocabulary sizes are the real data set's where memory
depends on them (Cora's 2708 nodes, MNIST's 28 x 28, the alphabet of a text).
"""

import json
import pickle
import random
import struct
import sys
from pathlib import Path

import numpy as np

RNG = np.random.default_rng(0)


def mnist(folder: Path) -> None:
    """MNIST as torchvision keeps it: idx files under `MNIST/raw`, as many images as the real one."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 60_000), ("t10k", 10_000)):
        images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">II", 0x801, count)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def words(count: int, vocabulary: int) -> str:
    lines = [
        " ".join(f"w{word}" for word in RNG.integers(0, vocabulary, 20)) for _ in range(count // 20)
    ]
    return "\n".join(lines) + "\n"


def wikitext(folder: Path) -> None:
    """Word files of WikiText-2's vocabulary (33278 words) and a twentieth of its length."""
    folder.mkdir(parents=True, exist_ok=True)
    every = " ".join(f"w{word}" for word in range(33_277)) + "\n"
    (folder / "train.txt").write_text(every + words(100_000, 33_277))
    (folder / "valid.txt").write_text(words(10_000, 33_277))
    (folder / "test.txt").write_text(words(10_000, 33_277))


def wikitext_single(folder: Path) -> None:
    """The same words in the one file that Lightning's demo reads."""
    folder.mkdir(parents=True, exist_ok=True)
    every = " ".join(f"w{word}" for word in range(33_277)) + "\n"
    (folder / "wikitext-2.txt").write_text(every + words(400_000, 33_277))


def text(folder: Path) -> None:
    """`input.txt`: a text of 65 different characters, as Shakespeare's in char-level examples."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    (folder / "input.txt").write_text("".join(random.Random(0).choices(alphabet, k=200_000)))


def chars_bin(folder: Path) -> None:
    """nanoGPT's prepared Shakespeare: `train.bin`, `val.bin` of 16-bit tokens and `meta.pkl`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 200_000), ("val", 20_000)):
        RNG.integers(0, 65, count).astype(np.uint16).tofile(folder / f"{name}.bin")
    letters = {str(index): index for index in range(65)}
    meta = dict(vocab_size=65, stoi=letters, itos={v: k for k, v in letters.items()})
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def save_image(path: Path, width: int, height: int) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    small = RNG.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    Image.fromarray(small).resize((width, height)).save(path)


def folders(folder: Path) -> None:
    """Images by class, in `train` and `val`: ten classes of 64 x 64 pixels or more."""
    for part, count in (("train", 24), ("val", 4)):
        for label in range(10):
            for number in range(count):
                save_image(folder / part / f"class{label}" / f"{number}.jpg", 256, 256)


def bsds(folder: Path) -> None:
    """BSDS300 as the super-resolution example unpacks it, with its 481 x 321 pictures."""
    for part, count in (("train", 200), ("test", 20)):
        for number in range(count):
            save_image(folder / "BSDS300" / "images" / part / f"{number}.jpg", 481, 321)


def pairs(folder: Path) -> None:
    """Two unpaired sets of pictures for image translation: `train/A`, `train/B`, `test/A`, …"""
    for part in ("train", "test"):
        for side in "AB":
            for number in range(8):
                save_image(folder / part / side / f"{number}.jpg", 256, 256)


def carvana(folder: Path) -> None:
    """Cars and their masks at Carvana's 1918 x 1280 pixels."""
    from PIL import Image

    (folder / "masks").mkdir(parents=True, exist_ok=True)
    for number in range(40):
        save_image(folder / "imgs" / f"car{number}.jpg", 1918, 1280)
        mask = np.zeros((1280, 1918), dtype=np.uint8)
        mask[300:900, 400 + number : 1500] = 1
        Image.fromarray(mask).save(folder / "masks" / f"car{number}_mask.gif")


def cora(folder: Path) -> None:
    """Cora as text: 2708 papers of 1433 words in 7 classes, 5429 citations."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "cora.content", "w") as file:
        for node in range(2708):
            has = RNG.random(1433) < 0.013
            has[node % 1433] = True
            row = "\t".join("1" if word else "0" for word in has)
            file.write(f"{node}\t{row}\tclass{node % 7}\n")
    edges: set[tuple[int, int]] = set()
    while len(edges) < 5429:
        a, b = (int(node) for node in RNG.integers(0, 2708, 2))
        if a != b:
            edges.add((a, b))
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in sorted(edges)))


def planetoid(folder: Path) -> None:
    """Cora as Planetoid's pickles, with the real counts."""
    import scipy.sparse

    folder.mkdir(parents=True, exist_ok=True)
    nodes, width, classes, train, test = 2708, 1433, 7, 140, 1000
    features = scipy.sparse.csr_matrix((RNG.random((nodes, width)) < 0.013).astype(np.float32))
    labels = np.eye(classes, dtype=np.int32)[np.arange(nodes) % classes]
    graph: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for a, b in RNG.integers(0, nodes, (5278, 2)).tolist():
        graph[a].append(b)
        graph[b].append(a)
    known = nodes - test
    parts = dict(
        x=features[:train], tx=features[known:], allx=features[:known],
        y=labels[:train], ty=labels[known:], ally=labels[:known], graph=graph,
    )  # fmt: skip
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (folder / "ind.cora.test.index").write_text("".join(f"{n}\n" for n in range(known, nodes)))


def coco(folder: Path) -> None:
    """COCO 2017: 16 pictures of 640 x 480 with boxes, and their annotations."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for part in ("train2017", "val2017"):
        images, boxes = [], []
        for number in range(16):
            save_image(folder / part / f"{number:012}.jpg", 640, 480)
            images.append(dict(id=number, file_name=f"{number:012}.jpg", width=640, height=480))
            for which in range(7):
                x, y, w, h = 20 + 60 * which, 30 + 10 * number, 80 + 5 * which, 100
                corners = [x, y, x + w, y, x + w, y + h, x, y + h]
                boxes.append(
                    dict(
                        id=len(boxes),
                        image_id=number,
                        category_id=1 + which,
                        bbox=[x, y, w, h],
                        area=w * h,
                        iscrowd=0,
                        segmentation=[corners],
                    )  # fmt: skip
                )
        names = [dict(id=number, name=str(number)) for number in range(1, 91)]
        everything = dict(images=images, annotations=boxes, categories=names)
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(everything))


def resnet50_weights(folder: Path) -> None:
    """Random weights where torch.hub keeps the downloaded ones of ResNet-50."""
    import torch
    import torchvision

    folder.mkdir(parents=True, exist_ok=True)
    weights = torchvision.models.resnet50().state_dict()
    for name in ("resnet50-0676ba61.pth", "resnet50-11ad3fa6.pth"):
        torch.save(weights, folder / name)


def vgg16_weights(folder: Path) -> None:
    """Random weights where torch.hub keeps the downloaded ones of VGG-16."""
    import torch
    import torchvision

    folder.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.vgg16().state_dict(), folder / "vgg16-397923af.pth")


def hf_model(folder: Path) -> None:
    """A Qwen2 of 0.5 billion parameters with random weights, and a tokenizer of its vocabulary."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {"<unk>": 0, "<eos>": 1, "<pad>": 2}
    vocabulary |= {f"w{word}": word + 3 for word in range(5000)}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="<unk>", eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32_768,
        tie_word_embeddings=True, eos_token_id=1, pad_token_id=2, bos_token_id=None,
    )  # fmt: skip
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).to_empty(device="cpu").save_pretrained(folder)


def jsonl(folder: Path) -> None:
    """A data set of texts as JSON lines: `train.jsonl`, `test.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 200), ("test", 20)):
        rows = [
            json.dumps(dict(text=words(20 * (5 + number % 40), 5000))) for number in range(count)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(rows) + "\n")


KINDS = {
    function.__name__: function
    for function in (
        mnist, wikitext, wikitext_single, text, chars_bin, folders, bsds, pairs, carvana, cora,
        planetoid, coco, resnet50_weights, vgg16_weights, hf_model, jsonl,
    )
}  # fmt: skip

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
