"""Measures transformers on PyTorch the way `soma-runtime bench` measures an encoder; peer_runs.py
comes before.

Arguments: model directory, threads, batch, tokens, repeats. Needs the package transformers.
"""

import torch
import transformers


def main():
    path = sys.argv[1]
    threads, batch, tokens, repeat = map(int, sys.argv[2:6])
    torch.set_num_threads(threads)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.arange(batch * tokens).reshape(batch, tokens) * 7919 % model.config.vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        measure(torch.__version__, lambda: model(**inputs), repeat)


main()
