"""What llama.cpp makes of the real models: perplexity of a fixed text, and greedy continuations.

Writes golden/real/MODEL.json: for each window of 512 tokens of golden/real/text.txt the sum of the negative
log-likelihoods of its second half, as llama.cpp's perplexity tool counts them; and for each prompt its ids, the 64
most probable next tokens one after the other, and at every step the tokens whose logits are little behind.

golden/real/text.txt is the project's own prose, licences and code as they were when it was made; it stays as it is.

Needs llama-cpp-python, so it is run by hand, and the models in the models folder (`cargo xtask models --all`).
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import llama_cpp
import numpy as np

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "golden/real"
MODELS = Path(
    os.environ.get("SOMA_MODELS")
    or Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share")) / "soma/models"
)
FILES = [
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m-q4_k_m.gguf",
    "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
]
TEXT = ["README.md", "LICENSE-MIT", "ARCHITECTURE.md", "STYLE.md", "docs/atoms.md", "docs/text.md", "docs/adding-a-jet.md",
        "docs/adding-a-model.md", "docs/matrix-products.md", "docs/perf.md", "LICENSE-APACHE", "crates/jets/src/jets/rope.rs",
        "crates/jets/src/jets/sdpa.rs", "crates/sample/src/filter.rs", "crates/text/src/stop.rs", "crates/cpu/src/team.rs"]
CONTEXT = 512
TOKENS = 64
NEAR = 0.5
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTION = "Which planet is the largest, and how do we know?"
PROMPTS = [
    "The history of bread begins",
    "def quicksort(items):\n    \"\"\"Sorts a list of numbers.\"\"\"\n",
    "Twelve months of the year: January, February,",
    "Die Hauptstadt von Österreich ist",
    CHAT.format(QUESTION),
]


@llama_cpp.llama_log_callback
def only_errors(level, text, _):
    if level == 4:
        sys.stderr.write(text.decode())


class Reference:
    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        assert self.model, path
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = CONTEXT
        parameters.n_threads = parameters.n_threads_batch = len(os.sched_getaffinity(0))
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)

    def tokenize(self, text, special):
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), ids, len(ids), True, special)
        assert count >= 0
        return list(ids[:count])

    def bos(self):
        adds = llama_cpp.llama_vocab_get_add_bos(self.vocabulary)
        return llama_cpp.llama_vocab_bos(self.vocabulary) if adds else None

    def forget(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def step(self, ids, position, wanted):
        """Logits of the tokens from index `wanted` on."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= wanted
        assert llama_cpp.llama_decode(self.context, batch) == 0
        llama_cpp.llama_batch_free(batch)
        data = ctypes.cast(llama_cpp.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(data, (len(ids) - wanted, self.size)).copy()


def surprise(reference, window):
    """The sum over the tokens after the first half, each predicted from those before it."""
    first = CONTEXT // 2
    reference.forget()
    total = 0.0
    for logits, token in zip(reference.step(window, 0, first), window[first + 1:]):
        logits = logits.astype(np.float64)
        top = logits.max()
        total += float(np.log(np.exp(logits - top).sum()) + top - logits[token])
    return total


def continuation(reference, prompt):
    reference.forget()
    ids = reference.tokenize(prompt, True)
    logits = reference.step(ids, 0, len(ids) - 1)[-1]
    tokens, near = [], []
    for step in range(TOKENS):
        # The lowest id wins a tie.
        best, *others = np.argsort(-logits, kind="stable")[:8]
        behind = [(int(token), round(float(logits[best] - logits[token]), 4)) for token in others]
        near.append([[token, gap] for token, gap in behind if gap < NEAR])
        tokens.append(int(best))
        logits = reference.step([tokens[-1]], len(ids) + step, 0)[-1]
    return {"prompt": prompt, "ids": ids, "tokens": tokens, "near": near}


def main():
    llama_cpp.llama_log_set(only_errors, None)
    OUT.mkdir(exist_ok=True)
    text = OUT / "text.txt"
    if not text.exists():
        text.write_text("\n".join((ROOT / name).read_text() for name in TEXT))
    for name in sys.argv[1:] or FILES:
        reference = Reference(MODELS / name)
        ids = reference.tokenize(text.read_text(), False)
        windows = [ids[at:at + CONTEXT] for at in range(0, len(ids) - CONTEXT + 1, CONTEXT)]
        for window in windows:
            if reference.bos() is not None:
                window[0] = reference.bos()
        prompts = [continuation(reference, prompt) for prompt in PROMPTS]
        sums = [round(surprise(reference, window), 4) for window in windows]
        counted = len(windows) * (CONTEXT - CONTEXT // 2 - 1)
        rows = {
            "text_tokens": len(ids),
            "perplexity": round(float(np.exp(sum(sums) / counted)), 6),
            "counted": counted,
            "surprise": sums,
            "prompts": prompts,
        }
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
        (OUT / f"{Path(name).stem}.json").write_text("{\n" + lines + "\n}\n")
        print(name, len(ids), rows["perplexity"], flush=True)
        llama_cpp.llama_free(reference.context)
        llama_cpp.llama_model_free(reference.model)


if __name__ == "__main__":
    main()
