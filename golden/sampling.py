"""Golden cases for crates/sample: what is left, with which probability, after Hugging Face's own
logits processors ran in the order of the pipeline. Writes sample/pipeline.txt.

One case is four lines: the parameters (temperature top_k top_p min_p repetition_penalty; top_k 0 is
off), the token history, the logits, and `token:probability` for every token that is left.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)


def case(out, rng, temperature, top_k, top_p, min_p, repetition_penalty, vocab):
    logits = np.round(rng.normal(0, 3, vocab), 3).astype(np.float32)
    history = rng.integers(0, vocab, 6)
    scores = torch.tensor(logits)[None].double()
    chain = []
    if repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(repetition_penalty))
    chain.append(TemperatureLogitsWarper(temperature))
    if top_k:
        chain.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        chain.append(TopPLogitsWarper(top_p))
    if min_p > 0:
        chain.append(MinPLogitsWarper(min_p))
    for step in chain:
        scores = step(torch.tensor(history)[None], scores)
    probs = torch.softmax(scores, -1)[0]
    print(temperature, top_k, top_p, min_p, repetition_penalty, file=out)
    print(*history, file=out)
    print(*(f"{x:.3f}" for x in logits), file=out)
    print(*(f"{i}:{p:.9f}" for i, p in enumerate(probs.tolist()) if p > 0), file=out)


def main(out):
    rng = np.random.default_rng(7)
    for vocab in (33, 200):
        for temperature in (0.3, 0.7, 1.0, 2.0):
            for top_k, top_p, min_p, penalty in (
                (0, 1.0, 0.0, 1.0),
                (40, 0.9, 0.05, 1.1),
                (5, 1.0, 0.0, 1.0),
                (0, 0.5, 0.0, 1.0),
                (0, 0.95, 0.05, 1.2),
                (0, 1.0, 0.05, 1.0),
                (10, 0.8, 0.0, 2.0),
                (1, 0.9, 0.05, 1.0),
            ):
                case(out, rng, temperature, top_k, top_p, min_p, penalty, vocab)


if __name__ == "__main__":
    with open(Path(__file__).parent / "sample/pipeline.txt", "w") as file:
        main(file)
