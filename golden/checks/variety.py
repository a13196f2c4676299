"""Random models of every family as transformers makes them, stored in every way, through `forward`.

    variety.py SOMA_RUNTIME [SEED [MODELS]]

Draws MODELS (100) models: family, sizes, head, activation, positions, what a configuration can say; type
of the weights, one file or shards, safetensors or a PyTorch checkpoint of either form, the spelling of
transformers 4 or 5. Each is run on a padded batch, with gaps in some, and compared with transformers on the
rounded weights. Prints the largest relative error of a row for each model beyond 1e-3 or failed, and a count.
Run by hand; nothing is stored.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.pop(0)  # tokenizers.py beside this file is not the package

import numpy as np
import safetensors.torch
import torch
import transformers as tf

LIMIT = 1e-3
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}


def pick(rng, *values):
    return values[rng.integers(len(values))]


def head_sizes(rng):
    """Heads, and a width that is a multiple of them with even heads."""
    heads = int(rng.integers(1, 6))
    return heads, heads * 2 * int(rng.integers(3, 12))


def labels(rng):
    n = pick(rng, 1, 2, 3, 5)
    other = "single_label_classification" if n > 1 else "regression"
    problem = pick(rng, None, "multi_label_classification", other)
    return dict(num_labels=n, problem_type=problem)


def encoder_sizes(rng, **changes):
    heads, width = head_sizes(rng)
    return dict(
        vocab_size=int(rng.integers(60, 300)), hidden_size=width, num_attention_heads=heads,
        num_hidden_layers=int(rng.integers(1, 4)), intermediate_size=int(rng.integers(9, 120)),
        max_position_embeddings=int(rng.integers(70, 200)), pad_token_id=int(rng.integers(0, 3)),
        hidden_act=pick(rng, "gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh"),
        layer_norm_eps=pick(rng, 1e-12, 1e-7, 1e-5), tie_word_embeddings=pick(rng, True, False),
    ) | changes


def heads_of(rng, prefix, *names):
    return getattr(tf, prefix + pick(rng, *names))


ALL = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")


def bert(rng):
    kind = pick(rng, "Bert", "Roberta", "XLMRoberta", "Camembert", "Electra", "MPNet", "DistilBert")
    sizes = encoder_sizes(rng, type_vocab_size=pick(rng, 1, 2, 3))
    if kind == "Electra":
        sizes["embedding_size"] = pick(rng, sizes["hidden_size"], 11, 30)
    if kind == "MPNet":
        del sizes["type_vocab_size"]
    if kind == "DistilBert":
        sizes = dict(
            vocab_size=sizes["vocab_size"], dim=sizes["hidden_size"], n_layers=sizes["num_hidden_layers"],
            n_heads=sizes["num_attention_heads"], hidden_dim=sizes["intermediate_size"],
            max_position_embeddings=sizes["max_position_embeddings"], activation=pick(rng, "gelu", "relu"),
            sinusoidal_pos_embds=pick(rng, True, False), pad_token_id=sizes["pad_token_id"])
    return heads_of(rng, kind, *ALL), getattr(tf, kind + "Config")(**sizes, **labels(rng))


def deberta(rng):
    changes = dict(
        relative_attention=pick(rng, True, True, False), position_biased_input=pick(rng, True, False),
        position_buckets=pick(rng, -1, 8, 16), share_att_key=pick(rng, True, False),
        norm_rel_ebd=pick(rng, "none", "layer_norm"), pos_att_type=pick(rng, ["c2p"], ["p2c"], ["c2p", "p2c"]),
        type_vocab_size=pick(rng, 0, 2), max_relative_positions=pick(rng, -1, 20), legacy=pick(rng, True, False))
    if rng.random() < 0.3:
        changes |= dict(conv_kernel_size=pick(rng, 3, 5), conv_act=pick(rng, "tanh", "gelu"))
    config = tf.DebertaV2Config(**encoder_sizes(rng, **changes), **labels(rng))
    return heads_of(rng, "DebertaV2", *ALL), config


def modernbert(rng):
    sizes = encoder_sizes(rng)
    for name in ("hidden_act", "layer_norm_eps"):
        del sizes[name]
    config = tf.ModernBertConfig(
        **sizes, **labels(rng), local_attention=pick(rng, 6, 10, 64), cls_token_id=1, sep_token_id=2, bos_token_id=1,
        eos_token_id=2, global_attn_every_n_layers=pick(rng, 1, 2, 3), classifier_pooling=pick(rng, "cls", "mean"),
        attention_bias=pick(rng, True, False), mlp_bias=pick(rng, True, False), norm_bias=pick(rng, True, False),
        hidden_activation=pick(rng, "gelu", "silu", "gelu_pytorch_tanh"))
    return heads_of(rng, "ModernBert", *ALL), config


def eurobert(rng):
    sizes = encoder_sizes(rng)
    del sizes["layer_norm_eps"]
    heads = sizes["num_attention_heads"]
    config = tf.EuroBertConfig(
        **sizes | dict(hidden_act="silu"), **labels(rng), bos_token_id=1, eos_token_id=2, mask_token_id=4,
        num_key_value_heads=pick(rng, *[n for n in range(1, heads + 1) if heads % n == 0]),
        classifier_pooling=pick(rng, "late", "mean", "bos"))
    return heads_of(rng, "EuroBert", *ALL), config


def nomic(rng):
    kind = pick(rng, "NomicBert", "Gte")
    sizes = encoder_sizes(rng, type_vocab_size=pick(rng, 2, 1 if kind == "NomicBert" else 0))
    if kind == "NomicBert":
        sizes["hidden_act"] = "silu"
    return heads_of(rng, kind, *ALL), getattr(tf, kind + "Config")(**sizes, **labels(rng))


def t5(rng):
    config = tf.T5Config(
        vocab_size=int(rng.integers(60, 300)), d_model=2 * int(rng.integers(5, 30)), d_kv=int(rng.integers(3, 20)),
        d_ff=int(rng.integers(9, 90)), num_layers=int(rng.integers(1, 4)), num_heads=int(rng.integers(1, 6)),
        relative_attention_num_buckets=pick(rng, 8, 12, 32), relative_attention_max_distance=pick(rng, 20, 50, 128),
        feed_forward_proj=pick(rng, "relu", "gated-gelu", "gated-silu", "gated-relu"), pad_token_id=0)
    return tf.T5EncoderModel, config


def rope(rng, head_dim):
    theta = pick(rng, 1e4, 5e5)
    return pick(
        rng, {"rope_type": "default", "rope_theta": theta}, {"rope_type": "linear", "rope_theta": theta, "factor": 4.0},
        {"rope_type": "dynamic", "rope_theta": theta, "factor": 2.0},
        {"rope_type": "yarn", "rope_theta": theta, "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "llama3", "rope_theta": theta, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32})


def decoder(rng):
    kind = pick(rng, "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2", "Gemma3", "Phi3")
    heads, width = head_sizes(rng)
    head_dim = 2 * int(rng.integers(3, 12))
    sizes = dict(
        vocab_size=int(rng.integers(60, 300)), hidden_size=width, num_attention_heads=heads,
        num_key_value_heads=pick(rng, *[n for n in range(1, heads + 1) if heads % n == 0]),
        num_hidden_layers=int(rng.integers(1, 4)), intermediate_size=int(rng.integers(9, 90)),
        max_position_embeddings=128, rms_norm_eps=pick(rng, 1e-5, 1e-6), bos_token_id=1, eos_token_id=2,
        pad_token_id=int(rng.integers(0, 3)), tie_word_embeddings=pick(rng, True, False))
    layers = sizes["num_hidden_layers"]
    kinds = [pick(rng, "full_attention", "sliding_attention") for _ in range(layers)]
    if kind not in ("Gemma3", "Phi3"):
        sizes["rope_parameters"] = rope(rng, head_dim)
    if kind in ("Llama", "Mistral", "Qwen3", "Gemma2", "Gemma3"):
        sizes["head_dim"] = head_dim
    if kind == "Llama":
        sizes |= dict(attention_bias=pick(rng, True, False), mlp_bias=pick(rng, True, False))
    if kind == "Mistral":
        sizes["sliding_window"] = pick(rng, None, 1, 5, 11)
    if kind in ("Qwen2", "Qwen3"):
        sizes |= dict(use_sliding_window=True, sliding_window=pick(rng, 4, 9), max_window_layers=pick(rng, 0, 1, 2))
    if kind in ("Gemma2", "Gemma3"):
        sizes |= dict(sliding_window=pick(rng, 6, 12), layer_types=kinds, query_pre_attn_scalar=pick(rng, 7, 32))
    if kind == "Gemma2":
        sizes |= dict(attn_logit_softcapping=pick(rng, None, 3.0, 50.0), final_logit_softcapping=pick(rng, None, 5.0))
    if kind == "Gemma3":
        sizes["use_bidirectional_attention"] = bool(rng.random() < 0.3)
    if kind == "Phi3":
        half = width // heads // 2
        sizes["sliding_window"] = pick(rng, None, 7)
        if rng.random() < 0.7:
            sizes |= dict(original_max_position_embeddings=24, rope_parameters={
                "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 24,
                "short_factor": [float(x) for x in 1 + rng.random(half)],
                "long_factor": [float(x) for x in 1 + 4 * rng.random(half)]})
    class_prefix = "Gemma3Text" if kind == "Gemma3" else kind
    both_ways = sizes.get("use_bidirectional_attention", False)
    options = {"Model": f"{class_prefix}Model", "Seq": f"{class_prefix}ForSequenceClassification"}
    if not both_ways:
        options["Lm"] = f"{kind}ForCausalLM"
    if kind != "Gemma3":
        options["Tok"] = f"{kind}ForTokenClassification"
    name = pick(rng, *options.values())
    config = getattr(tf, ("Gemma3Text" if kind == "Gemma3" else kind) + "Config")(**sizes, **labels(rng))
    return getattr(tf, name), config


def towers(rng):
    kind = pick(rng, "CLIP", "Siglip", "Siglip2")
    act = pick(rng, "quick_gelu", "gelu", "gelu_pytorch_tanh")

    def tower(**more):
        heads, width = head_sizes(rng)
        return dict(hidden_size=width, num_attention_heads=heads, intermediate_size=int(rng.integers(9, 80)),
                    num_hidden_layers=int(rng.integers(1, 3)), hidden_act=act) | more

    text = tower(vocab_size=int(rng.integers(60, 200)), max_position_embeddings=40)
    patch = pick(rng, 4, 7)
    if kind == "CLIP":
        text |= dict(eos_token_id=2, bos_token_id=1, pad_token_id=0)
        vision = tower(image_size=patch * pick(rng, 3, 5), patch_size=patch)
        config = tf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=int(rng.integers(6, 40)))
        names = {"CLIPModel": config, "CLIPTextModel": config.text_config, "CLIPVisionModel": config.vision_config,
                 "CLIPTextModelWithProjection": config.text_config, "CLIPVisionModelWithProjection": config.vision_config}
    else:
        vision = tower(patch_size=patch)
        vision["num_attention_heads"], vision["hidden_size"] = 2, pick(rng, 24, 36)
        text["num_attention_heads"], text["hidden_size"] = 2, vision["hidden_size"]
        text["projection_size"] = vision["hidden_size"]
        if kind == "Siglip":
            vision["image_size"] = patch * pick(rng, 3, 5)
        else:
            vision["num_patches"] = 16
        config = getattr(tf, kind + "Config")(text_config=text, vision_config=vision)
        names = {f"{kind}Model": config, f"{kind}TextModel": config.text_config,
                 f"{kind}VisionModel": config.vision_config}
    name = pick(rng, *names)
    return getattr(tf, name), names[name]


FAMILIES = [bert, bert, deberta, modernbert, eurobert, nomic, t5, decoder, decoder, decoder, towers]


def randomize(model, generator):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                gemma = type(model).__name__.startswith("Gemma")
                weight.copy_((0.0 if gemma else 1.0) + 0.2 * noise)
            elif weight.ndim <= 1:
                weight.copy_(0.4 * noise)
            elif "embed" in name and weight.ndim == 2:
                weight.copy_(0.6 * noise)
            else:
                fan = math.prod(weight.shape[1:])
                weight.copy_(1.2 / math.sqrt(fan) * noise)


def old_spelling(path):
    """config.json as transformers 4 wrote it."""
    file = path / "config.json"
    config = json.loads(file.read_text())
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    own = config.get("rope_parameters")
    if isinstance(own, dict) and "rope_theta" in own:
        config.pop("rope_parameters")
        config["rope_theta"] = own.pop("rope_theta")
        own.pop("partial_rotary_factor", None)
        config["rope_scaling"] = own if own.get("rope_type") != "default" else None
    file.write_text(json.dumps(config))


def store(model, path, dtype, rng):
    """How it was stored, in words."""
    shards = {} if rng.random() < 0.6 else {"max_shard_size": pick(rng, "9KB", "40KB")}
    form = pick(rng, "safetensors", "safetensors", "safetensors", "zip", "legacy")
    words = [form, "shards" if shards else "one file"]
    if dtype.itemsize == 1:
        # transformers writes no such file by itself.
        model.save_pretrained(path)
        file = path / "model.safetensors"
        tensors = safetensors.torch.load_file(file)
        small = {k: v.to(dtype) if v.ndim == 2 else v for k, v in tensors.items()}
        safetensors.torch.save_file(small, file, {"format": "pt"})
        words = ["safetensors"]
    else:
        model.to(dtype).save_pretrained(path, **shards)
        if form != "safetensors":
            for file in path.glob("model*.safetensors"):
                tensors = {k: v.clone() for k, v in safetensors.torch.load_file(file).items()}
                new = file.name.replace("model", "pytorch_model").replace(".safetensors", ".bin")
                torch.save(tensors, path / new, _use_new_zipfile_serialization=form == "zip")
                file.unlink()
            index = path / "model.safetensors.index.json"
            if index.exists():
                text = index.read_text().replace("model-", "pytorch_model-").replace(".safetensors", ".bin")
                (path / "pytorch_model.bin.index.json").write_text(text)
                index.unlink()
    if rng.random() < 0.4:
        old_spelling(path)
        words.append("as 4")
    return ", ".join(words)


def text_inputs(config, rng, two_towers=False):
    rows, width = int(rng.integers(1, 5)), int(rng.integers(1, 40))
    pad = config.pad_token_id or 0
    ids = rng.integers(3, config.vocab_size, size=(rows, width))
    mask = np.ones_like(ids)
    style = pick(rng, "none", "right", "left", "gaps")
    # What some references make of hidden first tokens depends on the padding of the batch.
    if config.model_type in ("deberta-v2", "siglip_text_model", "siglip2_text_model", "clip_text_model") or two_towers:
        style = pick(rng, "none", "right")
    if config.model_type == "modernbert" and style == "left":
        style = "right"  # a first token whose window is hidden sees nothing
    for row in range(rows):
        keep = int(rng.integers(1, width + 1))
        if style == "right":
            mask[row, keep:] = 0
            ids[row, keep:] = pad
        elif style == "left":
            mask[row, : width - keep] = 0
            ids[row, : width - keep] = pad
        elif style == "gaps" and width > 2:
            # The last token stays: a classifier asks it, and a hidden one has no meaning.
            mask[row, 1:-1] = rng.random(width - 2) < 0.7
    inputs = {"input_ids": ids}
    if style != "none":
        inputs["attention_mask"] = mask
    if getattr(config, "type_vocab_size", 0) > 1 and config.model_type not in ("roberta", "xlm-roberta", "camembert"):
        inputs["token_type_ids"] = rng.integers(0, config.type_vocab_size, size=ids.shape)
    return inputs


def picture_inputs(config, rng):
    if config.model_type.startswith("siglip2"):
        patch, side = config.patch_size, pick(rng, (3, 5), (4, 4), (2, 6))
        count = side[0] * side[1]
        longest = max(16, count)
        pixels = np.zeros((1, longest, patch * patch * 3), np.float32)
        pixels[:, :count] = rng.normal(size=(1, count, patch * patch * 3))
        mask = np.zeros((1, longest), np.int64)
        mask[:, :count] = 1
        shape = np.array([side], np.int64)
        return {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shape}
    shape = (int(rng.integers(1, 4)), 3, config.image_size, config.image_size)
    return {"pixel_values": rng.normal(size=shape).astype(np.float32)}


def inputs_of(model, config, rng):
    name = type(model).__name__
    if "Vision" in name:
        return picture_inputs(config, rng)
    if hasattr(config, "vision_config"):
        return text_inputs(config.text_config, rng, True) | picture_inputs(config.vision_config, rng)
    inputs = text_inputs(config, rng)
    if config.model_type == "clip_text_model":
        inputs["input_ids"][:, -1] = config.eos_token_id
    return inputs


def reference(model, inputs):
    with torch.no_grad():
        out = model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    return {k: v.float().numpy() for k, v in out.items() if torch.is_tensor(v)}


def worst(got, want, mask):
    """The largest relative error of a row whose token is seen."""
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if want.ndim == 3 and mask is not None and want.shape[:2] == mask.shape:
        got, want = got[mask == 1], want[mask == 1]
    rows = want.reshape(-1, want.shape[-1]).astype(np.float64)
    off = np.linalg.norm(got.reshape(rows.shape) - rows, axis=1)
    size = np.linalg.norm(rows, axis=1)
    # Of outputs of one or two numbers near 0 the size of the whole is the measure.
    size = np.maximum(size, 0.05 * max(size.max(), 1.0))
    return float((off / size).max())


def main():
    program = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        cases, lines = [], []
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            kind, config = pick(rng, *FAMILIES)(rng)
            config._attn_implementation = "eager"
            model = kind(config).eval()
            randomize(model, torch.Generator().manual_seed(1000 * seed + number))
            dtype_name = pick(rng, "f32", "f32", "f16", "bf16", "bf16", "f8_e4m3", "f8_e5m2")
            dtype = DTYPES[dtype_name]
            with torch.no_grad():
                for weight in model.parameters():
                    if dtype.itemsize > 1 or weight.ndim == 2:
                        weight.copy_(weight.to(dtype).float())
            inputs = inputs_of(model, config, rng)
            want = reference(model, inputs)
            path = folder / str(number)
            words = store(model, path, dtype, rng)
            np.savez(folder / f"{number}.in.npz", **inputs)
            lines.append(f"{path}\t{folder}/{number}.in.npz\t{folder}/{number}.out.npz")
            cases.append((f"{number} {kind.__name__} {dtype_name}, {words}", inputs, want))
        (folder / "list").write_text("\n".join(lines) + "\n")
        run = subprocess.run([program, "forward", "--list", folder / "list"], capture_output=True, text=True)
        failures = {}
        for line in run.stderr.splitlines():
            if " line " in line:
                failures[int(line.split(" line ")[1].split(":")[0]) - 1] = line
        good = 0
        for number, (name, inputs, want) in enumerate(cases):
            out = folder / f"{number}.out.npz"
            if not out.exists():
                print(name, "FAILED:", failures.get(number, run.stderr[-300:]))
                continue
            got = dict(np.load(out))
            mask = inputs.get("attention_mask")
            missing = [k for k in want if k not in got and k != "hidden_states"]
            errors = {k: worst(got[k], want[k], mask) for k in want if k in got}
            bad = {k: v for k, v in errors.items() if isinstance(v, str) or not v <= LIMIT}
            if bad or missing or not errors:
                config = json.loads((folder / str(number) / "config.json").read_text())
                print(name, bad, "missing" if missing else "", *missing)
                print("   ", json.dumps(config))
            else:
                good += 1
        print(f"{good} of {count} agree")


main()
