"""Tiny random models of each family, with the logits that transformers computes for them.

For each row of FAMILIES: families/NAME.gguf, f32 weights under the names and in the layout that
GGUF files of the family have, and families/NAME.npz with, for several lengths L,
  L.input_ids           int64 [1, L]
  L.logits              float32 [1, L, vocabulary]
  L.last_hidden_state   float32 [1, L, hidden], after the last norm
Sizes are odd on purpose: no width is a multiple of a SIMD register or of a quantised block.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

OUT = Path(__file__).parent / "families"


@dataclass
class Family:
    name: str
    architecture: str  # of the GGUF file
    model: type
    config: object
    lengths: list[int]
    spm: bool = False  # SentencePiece vocabulary; else byte-level BPE
    pre: str = "default"  # pre-tokenizer of the BPE vocabulary
    embedding_std: float = 1.0
    extra: dict = field(default_factory=dict)  # keys of the file beyond those every family has


BPE_SIZE, SPM_SIZE = 131, 389
PLAIN = [1, 13, 40]
WINDOW = 16
AROUND_WINDOW = [13, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 53]
ORIGINAL = 32
PAST_ORIGINAL = [13, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 40, 101]


def llama(**changes):
    base = dict(
        vocab_size=BPE_SIZE, hidden_size=48, intermediate_size=92, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
    )
    return transformers.LlamaConfig(**(base | changes))


def gemma3(**changes):
    base = dict(
        vocab_size=SPM_SIZE, hidden_size=40, intermediate_size=76, num_hidden_layers=7,
        num_attention_heads=2, num_key_value_heads=1, head_dim=24, query_pre_attn_scalar=24,
        max_position_embeddings=128, sliding_window=WINDOW, rms_norm_eps=1e-6,
        bos_token_id=2, eos_token_id=1, pad_token_id=0,
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(7)],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    )
    return transformers.Gemma3TextConfig(**(base | changes))


GEMMA3_SCALED = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
}
LLAMA3_SCALING = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL,
}
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

FAMILIES = [
    Family("llama2", "llama", transformers.LlamaForCausalLM,
           llama(vocab_size=SPM_SIZE, num_key_value_heads=4, intermediate_size=100), PLAIN, spm=True),
    Family("llama3", "llama", transformers.LlamaForCausalLM,
           llama(hidden_size=72, num_attention_heads=6, rope_parameters=LLAMA3_SCALING),
           PAST_ORIGINAL, pre="llama-bpe"),
    Family("llama-linear", "llama", transformers.LlamaForCausalLM,
           llama(rope_parameters=LINEAR), PAST_ORIGINAL),
    Family("llama-yarn", "llama", transformers.LlamaForCausalLM,
           llama(rope_parameters=YARN), PAST_ORIGINAL),
    Family("smollm2", "llama", transformers.LlamaForCausalLM,
           llama(hidden_size=54, num_attention_heads=3, num_key_value_heads=1,
                 num_hidden_layers=3, tie_word_embeddings=True), PLAIN,
           pre="smollm", embedding_std=0.4),
    Family("mistral", "llama", transformers.MistralForCausalLM,
           transformers.MistralConfig(
               vocab_size=SPM_SIZE, hidden_size=56, intermediate_size=92, num_hidden_layers=3,
               num_attention_heads=4, num_key_value_heads=2, head_dim=14, sliding_window=WINDOW,
               max_position_embeddings=128, rms_norm_eps=1e-5,
               rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
           AROUND_WINDOW, spm=True),
    Family("qwen2", "qwen2", transformers.Qwen2ForCausalLM,
           transformers.Qwen2Config(
               vocab_size=BPE_SIZE, hidden_size=56, intermediate_size=90, num_hidden_layers=2,
               num_attention_heads=7, num_key_value_heads=1, max_position_embeddings=128,
               rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False,
               rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
           PLAIN, pre="qwen2", embedding_std=0.4),
    Family("qwen3", "qwen3", transformers.Qwen3ForCausalLM,
           transformers.Qwen3Config(
               vocab_size=BPE_SIZE, hidden_size=44, intermediate_size=90, num_hidden_layers=2,
               num_attention_heads=4, num_key_value_heads=2, head_dim=20,
               max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False,
               rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
           PLAIN, pre="qwen2"),
    Family("gemma3", "gemma3", transformers.Gemma3ForCausalLM, gemma3(), AROUND_WINDOW, spm=True,
           embedding_std=0.3),
    Family("gemma3-scaled", "gemma3", transformers.Gemma3ForCausalLM,
           gemma3(rope_parameters=GEMMA3_SCALED), [13, 40, 101], spm=True, embedding_std=0.3),
]


def randomize(model, family, seed):
    """Weights that keep activations near 1, attention far from uniform and logits far from 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(shape, std):
        return torch.randn(shape, generator=generator) * std

    gemma = family.architecture == "gemma3"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                # gemma stores norm weights less 1
                weight.copy_(normal(weight.shape, 0.25) + (0.0 if gemma else 1.0))
            elif "embed_tokens" in name:
                weight.copy_(normal(weight.shape, family.embedding_std))
            elif weight.ndim == 1:
                weight.copy_(normal(weight.shape, 0.5))
            else:
                weight.copy_(normal(weight.shape, 1.3 / math.sqrt(weight.shape[1])))


def bpe_vocabulary(size):
    """Byte-level BPE over printable ASCII, with as many merges as fill the size."""
    specials = ["<|unknown|>", "<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    words = ["Ġ t", "h e", "Ġ a", "i n", "Ġt he", "e r", "o n", "r e", "Ġ s", "a t", "e n", "Ġ w",
             "o r", "Ġ c", "i t", "i s", "a n", "e s", "Ġ f", "l l", "Ġ o", "e d", "in g", "o u",
             "a r", "Ġ b", "Ġ p", "a l", "Ġ d", "Ġa n", "Ġan d", "Ġ in", "o m", "i c"]
    merges = words[: size - len(specials) - len(letters)]
    tokens = specials + letters + [merge.replace(" ", "") for merge in merges]
    assert len(tokens) == size and len(set(tokens)) == size
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    types = [control] * len(specials) + [normal] * (size - len(specials))
    return tokens, types, merges


def spm_vocabulary(size, control):
    """SentencePiece pieces: control tokens, the 256 bytes, printable ASCII and a few longer ones."""
    tokens = [(piece, 0.0, gguf.TokenType.CONTROL) for piece in control]
    tokens[control.index("<unk>")] = ("<unk>", 0.0, gguf.TokenType.UNKNOWN)
    tokens += [(f"<0x{byte:02X}>", 0.0, gguf.TokenType.BYTE) for byte in range(256)]
    pieces = ["▁t", "he", "▁a", "in", "▁the", "er", "on", "re", "▁s", "at", "en", "▁w", "or", "▁c",
              "it", "is", "an", "es", "▁f", "ll", "▁o", "ed", "ing", "ou", "ar", "▁b", "▁p", "al",
              "▁d", "▁an", "▁and", "▁in", "om", "ic", "▁m"]
    pieces += ["▁"] + [chr(c) for c in range(33, 127)]
    pieces = pieces[: size - len(tokens)]
    tokens += [(piece, -1.0 - i, gguf.TokenType.NORMAL) for i, piece in enumerate(pieces)]
    assert len(tokens) == size and len({piece for piece, _, _ in tokens}) == size
    return tokens


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(writer, family):
    size = family.config.vocab_size
    if family.spm:
        gemma = family.architecture == "gemma3"
        control = ["<pad>", "<eos>", "<bos>", "<unk>"] if gemma else ["<unk>", "<s>", "</s>"]
        tokens = spm_vocabulary(size, control)
        writer.add_tokenizer_model("llama")
        writer.add_token_list([piece for piece, _, _ in tokens])
        writer.add_token_scores([score for _, score, _ in tokens])
        writer.add_token_types([kind for _, _, kind in tokens])
        writer.add_bos_token_id(control.index("<bos>" if gemma else "<s>"))
        writer.add_eos_token_id(control.index("<eos>" if gemma else "</s>"))
        writer.add_unk_token_id(control.index("<unk>"))
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(False)
        writer.add_add_space_prefix(not gemma)
    else:
        tokens, types, merges = bpe_vocabulary(size)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(family.pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(4)
        writer.add_add_bos_token(family.pre == "llama-bpe")
        writer.add_chat_template(CHAT_TEMPLATE)


def write_hyperparameters(writer, family):
    config = family.config
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(f"tiny random {family.name}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if family.architecture == "llama":
        writer.add_vocab_size(config.vocab_size)
        writer.add_rope_dimension_count(head_dim)
    if head_dim * heads != config.hidden_size or family.architecture == "gemma3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    # gemma3 files hold the global layers' rope; 10000 for the local layers is implied.
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim))
    else:
        assert rope["rope_type"] == "default"


def llama3_divisors(rope, head_dim):
    """What each rope frequency is divided by: 1 for fast ones, the factor for slow ones, a blend
    between (https://arxiv.org/abs/2407.21783, and transformers' llama3 rope)."""
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        keep = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / (keep + (1.0 - keep) / rope["factor"]))
    return np.array(divisors, dtype=np.float32)


def pairs_from_halves(weight, heads):
    """Rows of a projection reordered from rope over halves to rope over neighbouring pairs, as
    files of the llama architecture store Q and K."""
    rows = weight.shape[0] // heads
    split = weight.reshape(heads, 2, rows // 2, *weight.shape[1:])
    return split.swapaxes(1, 2).reshape(weight.shape)


def write_tensors(writer, model, family):
    config = family.config
    architecture = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[family.architecture]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        data = weight.detach().numpy().astype(np.float32)
        if family.architecture == "llama":
            if name.endswith("q_proj.weight"):
                data = pairs_from_halves(data, config.num_attention_heads)
            elif name.endswith("k_proj.weight"):
                data = pairs_from_halves(data, config.num_key_value_heads)
        if family.architecture == "gemma3" and name.endswith("norm.weight"):
            data = data + np.float32(1)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target, f"{family.name}: no GGUF name for {name}"
        writer.add_tensor(target, np.ascontiguousarray(data))


def reference(model, family, seed):
    rng = np.random.default_rng(seed)
    values = {}
    for length in family.lengths:
        ids = rng.integers(0, family.config.vocab_size, size=(1, length), dtype=np.int64)
        with torch.no_grad():
            out = model(torch.from_numpy(ids), output_hidden_states=True, use_cache=False)
        assert out.logits.abs().max() > 1.0
        values[f"{length}.input_ids"] = ids
        values[f"{length}.logits"] = out.logits.numpy()
        values[f"{length}.last_hidden_state"] = out.hidden_states[-1].numpy()
    return values


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for number, family in enumerate(FAMILIES):
        family.config._attn_implementation = "eager"
        model = family.model(family.config).to(torch.float32).eval()
        randomize(model, family, 1000 + number)
        writer = gguf.GGUFWriter(OUT / f"{family.name}.gguf", family.architecture)
        write_hyperparameters(writer, family)
        write_tokenizer(writer, family)
        write_tensors(writer, model, family)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        values = reference(model, family, 2000 + number)
        np.savez(OUT / f"{family.name}.npz", **values)
        spread = np.std(values[f"{family.lengths[-1]}.logits"])
        print(f"{family.name}: logits' standard deviation {spread:.2f}")


if __name__ == "__main__":
    main()
