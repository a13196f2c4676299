"""fastText: tiny models of every loss and of both storages, and the real lid.176.ftz, through the
fasttext package (fasttext-wheel 0.9.2).

fasttext/NAME.bin or .ftz are trained here; fasttext/expected.json has, for each model, what `predict`
gives for lines of golden/languages.txt and their variations: [[label, probability], ...] a line.
The path of lid.176.ftz is the first argument.
"""

import json
import sys
import tempfile
from pathlib import Path

import fasttext

HERE = Path(__file__).parent
OUT = HERE / "fasttext"
COMMON = dict(dim=8, epoch=40, lr=0.6, thread=1, verbose=0)
MODELS = {
    "softmax.bin": dict(loss="softmax", minn=0, maxn=0, wordNgrams=1),
    "ova.bin": dict(loss="ova", minn=2, maxn=3, wordNgrams=1, bucket=150),
    "hs.bin": dict(loss="hs", minn=0, maxn=0, wordNgrams=3, bucket=150),
    "ns.bin": dict(loss="ns", minn=1, maxn=2, wordNgrams=2, bucket=150),
}
QUANTIZED = {
    "cut.ftz": (dict(loss="softmax", minn=2, maxn=3, wordNgrams=2, bucket=400),
                dict(qnorm=True, qout=False, cutoff=300, dsub=3)),
    "output.ftz": (dict(loss="hs", minn=2, maxn=2, wordNgrams=1, bucket=300),
                   dict(qnorm=False, qout=False, dsub=2)),
}
TOPICS = {"weather": "rain sun wind snow cloud storm", "food": "bread fruit soup rice apple cheese",
          "animal": "cat dog bird horse fish cow", "city": "street river bridge tower station park"}


def training(path):
    lines = []
    for i in range(240):
        label = list(TOPICS)[i % 4]
        words = TOPICS[label].split()
        picked = [words[(i * k + k) % 6] for k in (1, 2, 3)]
        lines.append(f"__label__{label} the {picked[0]} and {picked[1]} near a {picked[2]} {i % 7}")
    path.write_text("\n".join(lines))


def variations(line):
    words = line.split()
    return [line, line.lower(), " ".join(words[: len(words) // 2 + 1]),
            line[len(line) // 2 :], f"{line} {words[0]} 2024", words[-1]]


def predict(model, line, k):
    """[[label, probability], ...]; the package's own wrapper does not run under NumPy 2."""
    return [[label, round(float(p), 7)] for p, label in model.f.predict(line + "\n", k, 0.0, "strict")]


def main():
    OUT.mkdir(exist_ok=True)
    languages = (HERE / "languages.txt").read_text().splitlines()
    lines = [v for line in languages for v in variations(line)][:498] + ["", "!?"]
    assert len(lines) == 500
    model = fasttext.load_model(sys.argv[1])
    expected = {"lines": lines, "lid.176.ftz": [
        predict(model, line, 2) for line in lines]}
    short = ["the cat and a dog", "rain near the river", "bread", "unknown wörds ça", "",
             "the apple and cheese near a tower 3", "</s> fish", "__label__city street"]
    expected["short"] = short
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "train.txt"
        training(text)
        for name, options in MODELS.items():
            tiny = fasttext.train_supervised(str(text), **(COMMON | options))
            tiny.save_model(str(OUT / name))
        for name, (options, quantizer) in QUANTIZED.items():
            tiny = fasttext.train_supervised(str(text), **(COMMON | options))
            tiny.quantize(input=str(text), retrain=False, **quantizer)
            tiny.save_model(str(OUT / name))
    for name in [*MODELS, *QUANTIZED]:
        tiny = fasttext.load_model(str(OUT / name))
        expected[name] = [predict(tiny, line, 4) for line in short]
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))


if __name__ == "__main__":
    main()
