"""Measures llama.cpp the way `soma-runtime bench` measures itself. Prints one JSON object.

Arguments: model file, threads, prompt tokens, generated tokens, depth, sequences, repeats.
Needs the package llama-cpp-python.
"""

import json
import sys
import time

import llama_cpp


class Sequences:
    """Several sequences of one model, decoded together."""

    def __init__(self, model, count, length, threads):
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = count * length
        options.n_seq_max = count
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model.model, options)
        if not self.context:
            sys.exit(f"llama.cpp has no context for {count} sequences of {length} tokens")
        self.count = count
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, entries):
        """Entries: (token, position, sequence)."""
        self.batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = True
        if llama_cpp.llama_decode(self.context, self.batch):
            sys.exit("llama.cpp failed to decode several sequences")

    def fill(self, tokens):
        self.clear()
        for sequence in range(self.count):
            for start in range(0, len(tokens), 512):
                part = tokens[start:start + 512]
                self.decode([(t, start + i, sequence) for i, t in enumerate(part)])

    def step(self, token, position):
        self.decode([(token, position, sequence) for sequence in range(self.count)])


def main():
    path = sys.argv[1]
    threads, prompt, generated, depth, sequences, repeat = map(int, sys.argv[2:8])
    start = time.perf_counter()
    length = depth + max(prompt, generated) + 8
    model = llama_cpp.Llama(
        path, n_ctx=length, n_threads=threads, n_threads_batch=threads,
        n_batch=512, n_ubatch=512, flash_attn=True, verbose=False,
    )
    load_ms = (time.perf_counter() - start) * 1000
    vocabulary = model.n_vocab()
    tokens = [(7 + 31 * i) % vocabulary for i in range(length)]

    def fill(count):
        model.reset()
        if count:
            model.eval(tokens[:count])

    fill(max(depth, 1))  # weights come from disk and threads from sleep the first time
    model.eval(tokens[:1])
    prefill, decode = [], []
    for _ in range(repeat if prompt else 0):
        fill(depth)
        start = time.perf_counter()
        model.eval(tokens[depth:depth + prompt])
        prefill.append(prompt / (time.perf_counter() - start))
    together = Sequences(model, sequences, length, threads) if sequences > 1 else None
    for _ in range(repeat if generated else 0):
        if together:
            together.fill(tokens[:depth])
        else:
            fill(depth)
        start = time.perf_counter()
        for i in range(depth, depth + generated):
            if together:
                together.step(tokens[i], i)
            else:
                model.eval(tokens[i:i + 1])
        decode.append(sequences * generated / (time.perf_counter() - start))
    print(json.dumps({
        "version": llama_cpp.__version__, "load_ms": load_ms,
        "prefill": prefill, "decode": decode,
    }))


main()
