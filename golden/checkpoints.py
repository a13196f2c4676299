"""Tiny random decoders as Hugging Face directories, in f32, f16 and bf16, with the logits that
transformers computes for them in f32.

For each row of CHECKPOINTS: checkpoints/NAME/ as `save_pretrained` writes it, and
checkpoints/NAME.npz with L.input_ids and L.logits for several lengths L (the
original context of a scaled rope is on both sides). checkpoints/llama-gaps.npz is a batch with gaps. `llama` also has a tokenizer and a chat template,
and checkpoints/llama.json what `generate` continues a prompt with.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers as tf

import encoders

OUT = Path(__file__).parent / "checkpoints"
ORIGINAL = 24
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def sizes(**changes):
    base = dict(
        vocab_size=encoders.VOCAB, hidden_size=32, intermediate_size=36, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=96,
        rms_norm_eps=1e-6, rope_parameters=PLAIN, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=2, pad_token_id=1,
    )
    return base | changes


LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": ORIGINAL}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.3, 1.2], "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": ORIGINAL}
BY_KIND = {"sliding_attention": PLAIN,
           "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}}
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

CHECKPOINTS = {
    "llama": (tf.LlamaForCausalLM, tf.LlamaConfig(**sizes(rope_parameters=LLAMA3)), BF16),
    "llama-tied": (tf.LlamaForCausalLM, tf.LlamaConfig(
        **sizes(rope_parameters=YARN, tie_word_embeddings=True, attention_bias=True)), BF16),
    "mistral": (tf.MistralForCausalLM, tf.MistralConfig(
        **sizes(head_dim=12, sliding_window=9)), BF16),
    "qwen2": (tf.Qwen2ForCausalLM, tf.Qwen2Config(
        **sizes(use_sliding_window=True, sliding_window=7, max_window_layers=1)), F16),
    "qwen3": (tf.Qwen3ForCausalLM, tf.Qwen3Config(
        **sizes(head_dim=10, tie_word_embeddings=True)), BF16),
    "gemma2": (tf.Gemma2ForCausalLM, tf.Gemma2Config(
        **sizes(head_dim=14, sliding_window=8, query_pre_attn_scalar=20, attn_logit_softcapping=4.0,
                final_logit_softcapping=3.0, tie_word_embeddings=True)), BF16),
    "gemma3": (tf.Gemma3ForCausalLM, tf.Gemma3TextConfig(
        **sizes(head_dim=14, sliding_window=8, query_pre_attn_scalar=14, tie_word_embeddings=True,
                rope_parameters=BY_KIND,
                layer_types=["full_attention", "sliding_attention"])), BF16),
    "phi3": (tf.Phi3ForCausalLM, tf.Phi3Config(
        **sizes(original_max_position_embeddings=ORIGINAL, rope_parameters=LONG)), BF16),
}
LENGTHS = [13, 40]


def randomize(model, gemma, seed):
    """Weights that keep activations near 1, attention far from uniform and logits far from 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(0.25 * noise + (0.0 if gemma else 1.0))
            elif "embed_tokens" in name:
                weight.copy_(0.4 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.5 * noise)
            else:
                weight.copy_(1.3 / math.sqrt(weight.shape[1]) * noise)


def gaps():
    """checkpoints/llama-gaps.npz: rows padded on the left and with hidden tokens in the middle, and
    the same with positions of their own."""
    model = tf.AutoModelForCausalLM.from_pretrained(
        OUT / "llama", dtype=F32, attn_implementation="eager").eval()
    rng = np.random.default_rng(6100)
    ids = rng.integers(3, encoders.VOCAB, size=(3, 17), dtype=np.int64)
    mask = np.ones_like(ids)
    mask[0, :5] = 0
    mask[1, 6:9] = 0
    mask[1, 12] = 0
    mask[2, 14:] = 0
    positions = np.cumsum(rng.integers(1, 4, size=ids.shape), axis=1)
    values = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    for name, extra in [("counted", {}), ("given", {"position_ids": torch.from_numpy(positions)})]:
        with torch.no_grad():
            out = model(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask),
                        use_cache=False, **extra)
        values[f"{name}.logits"] = out.logits.numpy()
    np.savez_compressed(OUT / "llama-gaps.npz", **values)


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for number, (name, (kind, config, dtype)) in enumerate(CHECKPOINTS.items()):
        config._attn_implementation = "eager"
        model = kind(config).eval()
        randomize(model, "gemma" in name, 5000 + number)
        encoders.round_weights(model, dtype)
        rng = np.random.default_rng(6000 + number)
        values = {}
        for length in LENGTHS:
            ids = rng.integers(3, config.vocab_size, size=(1, length), dtype=np.int64)
            with torch.no_grad():
                out = model(torch.from_numpy(ids), use_cache=False)
            assert out.logits.abs().max() > 0.5
            values[f"{length}.input_ids"] = ids
            values[f"{length}.logits"] = out.logits.numpy()
        path = OUT / name
        shutil.rmtree(path, ignore_errors=True)
        model.to(dtype).save_pretrained(path)
        np.savez_compressed(OUT / f"{name}.npz", **values)
        print(name, np.std(values["40.logits"]))
    gaps()
    path = OUT / "llama"
    encoders.byte_level(path)
    (path / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]")
    tokenizer = tf.AutoTokenizer.from_pretrained(path)
    model = tf.AutoModelForCausalLM.from_pretrained(path, dtype=F32).eval()
    prompt = "The river and the sea"
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    made = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1]:].tolist()
    (OUT / "llama.json").write_text(json.dumps(
        {"prompt": prompt, "ids": ids[0].tolist(), "made": made, "text": tokenizer.decode(made)}))


if __name__ == "__main__":
    main()
