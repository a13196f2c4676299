"""Tiny random encoders as Hugging Face directories, with what transformers and
sentence-transformers compute for them.

For each row of ENCODERS: encoders/NAME/ as `save_pretrained` writes it, and encoders/NAME.npz with
the inputs and outputs of one padded batch under the reference's names, the inputs prefixed `in.`,
the outputs `out.`. Each row of TEXTS adds a tokenizer and encoders/texts.json, what the pipelines
give for some texts. Sizes are odd on purpose.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

OUT = Path(__file__).parent / "encoders"
VOCAB = 131
LENGTHS = [13, 33, 1]


def bert(**changes):
    base = dict(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=44, max_position_embeddings=99, type_vocab_size=2, layer_norm_eps=1e-12,
    )
    return base | changes


def modernbert():
    return dict(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=4, num_attention_heads=2,
        intermediate_size=26, max_position_embeddings=99, local_attention=14, pad_token_id=0,
        bos_token_id=2, cls_token_id=2, eos_token_id=3, sep_token_id=3,
    )


def t5(**changes):
    base = dict(
        vocab_size=VOCAB, d_model=24, d_kv=10, d_ff=44, num_layers=2, num_heads=3,
        relative_attention_num_buckets=12, relative_attention_max_distance=21,
    )
    return base | changes


def deberta(**changes):
    base = bert(relative_attention=True, position_biased_input=False, position_buckets=8,
                norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type="p2c|c2p",
                type_vocab_size=0, max_position_embeddings=25, layer_norm_eps=1e-7)
    return base | changes


def decoder(**changes):
    base = dict(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=28, max_position_embeddings=99, bos_token_id=0,
        eos_token_id=2, pad_token_id=1,
    )
    return base | changes


LABELS = {0: "contradiction", 1: "neutral", 2: "entailment"}
TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


def labels(names):
    return dict(id2label=names, label2id={v: k for k, v in names.items()})


ENCODERS = {
    "bert": (tf.BertModel, tf.BertConfig(**bert())),
    "bert-masked": (tf.BertForMaskedLM, tf.BertConfig(**bert(hidden_act="gelu_new"))),
    "bert-pair": (tf.BertForSequenceClassification,
                  tf.BertConfig(**bert(hidden_act="relu"), **labels(LABELS))),
    "bert-rerank": (tf.BertForSequenceClassification, tf.BertConfig(**bert(), num_labels=1)),
    "bert-tags": (tf.BertForTokenClassification, tf.BertConfig(**bert(), **labels(TAGS))),
    "roberta": (tf.RobertaModel, tf.RobertaConfig(
        **bert(type_vocab_size=1, pad_token_id=1, num_attention_heads=3))),
    "roberta-nli": (tf.RobertaForSequenceClassification, tf.RobertaConfig(
        **bert(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2),
        **labels(LABELS))),
    "xlm-roberta-masked": (tf.XLMRobertaForMaskedLM, tf.XLMRobertaConfig(
        **bert(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2))),
    "xlm-roberta-tags": (tf.XLMRobertaForTokenClassification, tf.XLMRobertaConfig(
        **bert(type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2),
        **labels(TAGS))),
    "distilbert": (tf.DistilBertForSequenceClassification, tf.DistilBertConfig(
        vocab_size=VOCAB, dim=24, n_layers=2, n_heads=3, hidden_dim=44,
        max_position_embeddings=99, **labels({0: "NEGATIVE", 1: "POSITIVE"}))),
    "distilbert-masked": (tf.DistilBertForMaskedLM, tf.DistilBertConfig(
        vocab_size=VOCAB, dim=24, n_layers=1, n_heads=3, hidden_dim=44,
        max_position_embeddings=99)),
    "electra": (tf.ElectraForSequenceClassification, tf.ElectraConfig(
        **bert(embedding_size=14), **labels(LABELS), problem_type="multi_label_classification")),
    "electra-tags": (tf.ElectraForTokenClassification, tf.ElectraConfig(
        **bert(embedding_size=24, num_hidden_layers=1), **labels(TAGS))),
    "modernbert": (tf.ModernBertForSequenceClassification, tf.ModernBertConfig(
        **modernbert(), **labels(LABELS))),
    "modernbert-masked": (tf.ModernBertForMaskedLM, tf.ModernBertConfig(**modernbert())),
    "mpnet": (tf.MPNetForSequenceClassification, tf.MPNetConfig(
        **{k: v for k, v in bert(pad_token_id=1).items() if k != "type_vocab_size"},
        **labels(LABELS), bos_token_id=0, eos_token_id=2)),
    "nomic-bert": (tf.NomicBertModel, tf.NomicBertConfig(**bert(num_hidden_layers=1))),
    "eurobert": (tf.EuroBertForTokenClassification, tf.EuroBertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=26, max_position_embeddings=99, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, mask_token_id=4, **labels(TAGS))),
    "t5": (tf.T5EncoderModel, tf.T5Config(**t5())),
    "t5-gated": (tf.T5EncoderModel, tf.T5Config(
        **t5(feed_forward_proj="gated-gelu", num_layers=1))),
    "deberta": (tf.DebertaV2ForSequenceClassification, tf.DebertaV2Config(
        **deberta(), **labels(LABELS))),
    "deberta-tags": (tf.DebertaV2ForTokenClassification, tf.DebertaV2Config(
        **deberta(position_biased_input=True, position_buckets=-1, share_att_key=False,
                  pos_att_type=["c2p"], norm_rel_ebd="none", type_vocab_size=2,
                  max_relative_positions=9, max_position_embeddings=99, num_hidden_layers=1),
        **labels(TAGS))),
    "deberta-masked": (tf.DebertaV2ForMaskedLM, tf.DebertaV2Config(
        **deberta(position_buckets=6, share_att_key=False, num_hidden_layers=1))),
    "modernbert-mean": (tf.ModernBertForSequenceClassification, tf.ModernBertConfig(
        **modernbert() | dict(num_hidden_layers=1), **labels(LABELS), classifier_pooling="mean")),
    "nomic-masked": (tf.NomicBertForMaskedLM, tf.NomicBertConfig(**bert(num_hidden_layers=1))),
    "gte": (tf.GteForSequenceClassification, tf.GteConfig(
        **bert(type_vocab_size=0, pad_token_id=1), **labels(LABELS))),
    "eurobert-late": (tf.EuroBertForSequenceClassification, tf.EuroBertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, intermediate_size=26, max_position_embeddings=99, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, mask_token_id=4, classifier_pooling="late",
        **labels(LABELS))),
    "deberta-conv": (tf.DebertaV2ForTokenClassification, tf.DebertaV2Config(
        **deberta(conv_kernel_size=5, conv_act="gelu", conv_groups=2, num_hidden_layers=2),
        **labels(TAGS))),
    # Decoders that read and do not write.
    "qwen3-rerank": (tf.Qwen3ForSequenceClassification, tf.Qwen3Config(
        **decoder(head_dim=10), num_labels=1)),
    "gemma2-pair": (tf.Gemma2ForSequenceClassification, tf.Gemma2Config(
        **decoder(head_dim=14, sliding_window=8, query_pre_attn_scalar=20, num_hidden_layers=3,
                  attn_logit_softcapping=4.0), **labels(LABELS))),
    "llama-tags": (tf.LlamaForTokenClassification, tf.LlamaConfig(
        **decoder(num_hidden_layers=1), **labels(TAGS))),
    "mistral-gaps": (tf.MistralForSequenceClassification, tf.MistralConfig(
        **decoder(sliding_window=6), **labels(TAGS))),
    "gemma3-both-ways": (tf.Gemma3TextModel, tf.Gemma3TextConfig(
        **decoder(head_dim=14, sliding_window=10, query_pre_attn_scalar=14,
                  use_bidirectional_attention=True,
                  layer_types=["sliding_attention", "full_attention"]))),
    # A head for words that is the embedding, and one that is not and has a bias of its own.
    "eurobert-masked": (tf.EuroBertForMaskedLM, tf.EuroBertConfig(
        vocab_size=VOCAB, hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, intermediate_size=20, max_position_embeddings=99, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, mask_token_id=4, tie_word_embeddings=True)),
    "bert-untied": (tf.BertForMaskedLM, tf.BertConfig(
        **bert(num_hidden_layers=1, tie_word_embeddings=False))),
    # Whose head for words has a GELU whatever the layers have.
    "electra-masked": (tf.ElectraForMaskedLM, tf.ElectraConfig(
        **bert(num_hidden_layers=1, embedding_size=14, hidden_act="relu"))),
}
# Padding on the left, tokens in the middle that are hidden, padding ids among the tokens.
HOLES = ["bert-pair", "roberta-nli", "deberta", "deberta-conv", "modernbert-mean", "eurobert-late", "mpnet", "t5",
         "gemma2-pair", "mistral-gaps", "llama-tags", "gemma3-both-ways"]
HALF = {
    "qwen3-rerank": torch.bfloat16, "gemma2-pair": torch.bfloat16, "llama-tags": torch.float16,
    "mistral-gaps": torch.bfloat16, "gemma3-both-ways": torch.bfloat16,
    "eurobert-masked": torch.bfloat16, "bert-untied": torch.bfloat16, "electra-masked": torch.bfloat16,
    "deberta-conv": torch.bfloat16,
    "deberta-masked": torch.bfloat16, "modernbert-mean": torch.float16,
    "eurobert-late": torch.bfloat16, "nomic-masked": torch.bfloat16,
    "t5-gated": torch.bfloat16, "nomic-bert": torch.bfloat16, "eurobert": torch.bfloat16,
    "modernbert-masked": torch.bfloat16,
    "bert-masked": torch.bfloat16, "bert-rerank": torch.bfloat16, "bert-tags": torch.bfloat16,
    "roberta-nli": torch.float16, "xlm-roberta-masked": torch.bfloat16,
    "xlm-roberta-tags": torch.float16, "distilbert-masked": torch.bfloat16,
    "electra-tags": torch.bfloat16,
}


def randomize(model, seed):
    """Weights that keep activations near 1, attention far from uniform and logits far from 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "norm" in name.lower() and name.endswith("weight"):
                weight.copy_(1.0 + 0.25 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.5 * noise)
            elif ("embeddings" in name or "shared" in name) and "project" not in name:
                weight.copy_(0.7 * noise)
            else:
                weight.copy_(1.3 / math.sqrt(weight.shape[1]) * noise)


def round_weights(model, dtype):
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(dtype).float())


def holes(inputs, config):
    """The batch with rows that are not padded on the right."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    mask[0, 4:6] = 0
    # What DeBERTa makes of a first token that is hidden depends on the padding of the batch.
    mask[1, 1 if config.model_type == "deberta-v2" else 0 : 3] = 0
    ids[1, 7] = config.pad_token_id or 0
    return inputs


def batch(config, seed):
    """Sequences of several lengths, padded on the right, with token types where there are some."""
    rng = np.random.default_rng(seed)
    width = max(LENGTHS)
    pad = config.pad_token_id or 0
    ids = np.full((len(LENGTHS), width), pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    types = np.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = rng.integers(5, config.vocab_size, size=length)
        mask[row, :length] = 1
        types[row, length // 2 : length] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = types
    return inputs


def reference(model, inputs):
    with torch.no_grad():
        out = model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    values = {}
    if "logits" in out:
        assert out.logits.abs().max() > 0.3
        values["logits"] = out.logits
    else:
        values["last_hidden_state"] = out.last_hidden_state
    if out.get("pooler_output") is not None:
        values["pooler_output"] = out.pooler_output
    return {k: v.float().numpy() for k, v in values.items()}


def save(name, model, inputs, outputs):
    path = OUT / name
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path)
    for extra in path.glob("*.json"):
        if extra.name not in ("config.json", "generation_config.json"):
            extra.unlink()
    arrays = {f"in.{k}": v for k, v in inputs.items()}
    arrays |= {f"out.{k}": v.astype(np.float32) for k, v in outputs.items()}
    np.savez_compressed(OUT / f"{name}.npz", **arrays)
    print(name, {k: v.shape for k, v in outputs.items()})


def published_gte():
    """GTE as it was published (`new`), with projections apart and queries that grow with the length
    of the text: the library's GTE, whose queries are scaled for each row alone."""
    config = tf.GteConfig(**bert(type_vocab_size=2, pad_token_id=1))
    config._attn_implementation = "eager"
    model = tf.GteModel(config, add_pooling_layer=False).eval()
    randomize(model, 3900)
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    inputs = batch(config, 4900)
    hidden = np.zeros((*inputs["input_ids"].shape, config.hidden_size), np.float32)
    for row, length in enumerate(LENGTHS):
        factor = math.log(length) / math.log(40)
        with torch.no_grad():
            for layer, own in enumerate(model.layers):
                for kind in ("weight", "bias"):
                    name = f"layers.{layer}.self_attn.q_proj.{kind}"
                    getattr(own.self_attn.q_proj, kind).copy_(tensors[name] * factor)
        one = {k: v[row : row + 1, :length] for k, v in inputs.items()}
        hidden[row, :length] = reference(model, one)["last_hidden_state"][0]
    path = OUT / "gte-new"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    published = {}
    for name, tensor in tensors.items():
        if not name.startswith("layers."):
            published[name] = tensor
            continue
        _, layer, *rest = name.split(".")
        own = ".".join(rest)
        for ours, theirs in [("self_attn.", "attention."), ("post_attention_layernorm", "attn_ln"),
                             ("post_mlp_layernorm", "mlp_ln")]:
            own = own.replace(ours, theirs)
        published[f"encoder.layer.{layer}.{own}"] = tensor
    for layer in range(config.num_hidden_layers):
        own = f"encoder.layer.{layer}.mlp."
        up, gate = (published.pop(f"{own}{part}_proj.weight") for part in ("up", "gate"))
        published[f"{own}up_gate_proj.weight"] = torch.cat([up, gate])
    safetensors.torch.save_file(published, path / "model.safetensors", {"format": "pt"})
    settings = {k: v for k, v in bert().items() if k != "max_position_embeddings"}
    settings |= dict(architectures=["NewModel"], model_type="new", max_position_embeddings=40,
                     hidden_act="gelu", layer_norm_type="layer_norm", pack_qkv=False,
                     position_embedding_type="rope", rope_theta=160000.0, rope_scaling=None,
                     logn_attention_scale=True, logn_attention_clip1=False, unpad_inputs=False,
                     use_memory_efficient_attention=False, pad_token_id=1, type_vocab_size=2)
    (path / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    arrays = {f"in.{k}": v for k, v in inputs.items()}
    np.savez_compressed(OUT / "gte-new.npz", **arrays, **{"out.last_hidden_state": hidden})


WORDS = """the of and to in a is was for on who why where does what city river lake stands flows
 near over under small large old new paris london rome berlin is it not no yes very good bad
 weather today rain sun snow dog cat bird sings runs sleeps can will has had they we you he she old there here north south west east up down , . ? ! ' - 1 2 3""".split()


def wordpiece(path):
    """A lower-casing WordPiece tokenizer with as many pieces as VOCAB."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    words = list(dict.fromkeys(w for w in WORDS if len(w) > 1 or not w.isalpha()))
    pieces = specials + letters + [f"##{c}" for c in letters] + words
    pieces = pieces[:VOCAB]
    assert len(pieces) == VOCAB, len(pieces)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]", model_max_length=99,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(path)


def byte_level(path):
    """A byte-level BPE tokenizer with RoBERTa's special tokens."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    merges = [("Ġ", "t"), ("h", "e"), ("Ġ", "a"), ("i", "n"), ("Ġt", "he"), ("e", "r"), ("o", "n"),
              ("r", "e"), ("Ġ", "s"), ("a", "t"), ("e", "n"), ("Ġ", "w"), ("o", "r"), ("Ġ", "c"),
              ("i", "t"), ("i", "s"), ("a", "n"), ("e", "s"), ("Ġ", "f"), ("l", "l"), ("Ġ", "o"),
              ("e", "d"), ("in", "g"), ("o", "u"), ("a", "r"), ("Ġ", "b"), ("Ġ", "p"), ("a", "l"),
              ("Ġ", "d"), ("Ġ", "r")]
    pieces = specials + letters + ["".join(m) for m in merges]
    assert len(pieces) == VOCAB, len(pieces)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
        special_tokens=[("<s>", 0), ("</s>", 2)])
    tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>", cls_token="<s>", sep_token="</s>", mask_token="<mask>",
        model_max_length=97, model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(path)


TEXTS = [
    "The river flows near Rome.", "why does it rain?", "a", "",
    "Good weather today, a bird sings and the dog sleeps under it!",
]
QUERY = "where is the old city?"
TOPICS = ["weather", "a city", "dog"]


def pipelines():
    """What the pipelines of transformers give for texts."""
    result = {"texts": TEXTS, "query": QUERY, "topics": TOPICS}
    for name, tokenizer in [("bert-pair", wordpiece), ("bert-rerank", wordpiece),
                            ("bert-tags", wordpiece), ("roberta-nli", byte_level),
                            ("distilbert", wordpiece), ("electra", wordpiece),
                            ("qwen3-rerank", byte_level), ("gemma2-pair", byte_level)]:
        tokenizer(OUT / name)
    def plain(pairs):
        return [[pair["label"], float(pair["score"])] for pair in pairs]
    for name in ["bert-pair", "roberta-nli", "distilbert", "electra", "gemma2-pair"]:
        pipe = tf.pipeline("text-classification", str(OUT / name), top_k=None, dtype="float32")
        result[name] = [plain(scores) for scores in pipe(TEXTS)]
    pipe = tf.pipeline("token-classification", str(OUT / "bert-tags"), dtype="float32",
                       ignore_labels=[])
    result["bert-tags"] = [
        [[t["word"], t["entity"], float(t["score"]), t["start"], t["end"]] for t in tokens]
        for tokens in map(pipe, TEXTS)]
    pipe = tf.pipeline("zero-shot-classification", str(OUT / "roberta-nli"), dtype="float32")
    result["zero-shot"] = [
        dict(zip(r["labels"], map(float, r["scores"])))
        for r in (pipe(t, TOPICS) for t in TEXTS if t)]
    result["zero-shot-multi"] = [
        dict(zip(r["labels"], map(float, r["scores"])))
        for r in (pipe(t, TOPICS, multi_label=True) for t in TEXTS if t)]
    from sentence_transformers import CrossEncoder
    for name in ["bert-rerank", "qwen3-rerank"]:
        cross = CrossEncoder(str(OUT / name), model_kwargs={"dtype": torch.float32})
        result[name] = [float(x) for x in cross.predict([(QUERY, t) for t in TEXTS])]
    (OUT / "texts.json").write_text(json.dumps(result, ensure_ascii=False, indent=1))


def sentence_models():
    """sentence-transformers models: every pooling, dense stages, normalisation."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    result = {"texts": TEXTS}
    base = OUT / "_base"
    small = bert(num_hidden_layers=1, max_position_embeddings=24, intermediate_size=20)
    model = tf.BertModel(tf.BertConfig(**small)).eval()
    randomize(model, 77)
    model.save_pretrained(base)
    wordpiece(base)
    for modes in [("cls",), ("mean",), ("max", "mean_sqrt_len_tokens"), ("weightedmean",),
                  ("lasttoken",)]:
        mode = "+".join(modes)
        stages = [Transformer(str(base), max_seq_length=20), Pooling(24, pooling_mode=modes)]
        if mode in ("cls", "mean"):
            torch.manual_seed(5)
            stages.append(Dense(24, 21, bias=mode == "cls",
                                activation_function=torch.nn.Tanh() if mode == "cls"
                                else torch.nn.Identity()))
        if mode in ("cls", "lasttoken"):
            stages.append(Normalize())
        sentence = SentenceTransformer(modules=stages, device="cpu")
        path = OUT / f"sentence-{mode}"
        shutil.rmtree(path, ignore_errors=True)
        sentence.save(str(path), create_model_card=False)
        result[mode] = [[float(x) for x in v] for v in sentence.encode(TEXTS)]
    shutil.rmtree(base)
    (OUT / "sentences.json").write_text(json.dumps(result, ensure_ascii=False))


def main():
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    for number, (name, (kind, config)) in enumerate(ENCODERS.items()):
        config._attn_implementation = "eager"
        model = kind(config).eval()
        randomize(model, 3000 + number)
        # Outputs are those of the rounded weights in f32; buffers, such as frequencies, are exact.
        round_weights(model, HALF.get(name, torch.float32))
        inputs = batch(config, 4000 + number)
        if name in HOLES:
            inputs = holes(inputs, config)
        outputs = reference(model, inputs)
        save(name, model.to(HALF.get(name, torch.float32)), inputs, outputs)
    published_gte()
    pipelines()
    sentence_models()


if __name__ == "__main__":
    main()
