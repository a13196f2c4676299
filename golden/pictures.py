"""Tiny random CLIP, SigLIP and SigLIP 2 models as Hugging Face directories, with what transformers
computes for them.

For each row of MODELS: pictures/NAME/ as `save_pretrained` writes it, and pictures/NAME.npz with
inputs under `in.` and outputs under `out.`. pictures/pictures.json has what the image processors,
on Pillow, the models and the pipelines make of pictures of detect/. Sizes are odd on purpose.
"""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from encoders import VOCAB, byte_level, round_weights

OUT = Path(__file__).parent / "pictures"
SEEN = ["face.png", "drawing.bmp", "turned.jpg"]
LABELS = ["a face", "a river", "two dogs"]


def text(**changes):
    return dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=38, num_hidden_layers=2,
                num_attention_heads=3, max_position_embeddings=35, eos_token_id=2,
                bos_token_id=0, pad_token_id=1) | changes


def vision(**changes):
    return dict(hidden_size=28, intermediate_size=36, num_hidden_layers=2, num_attention_heads=2,
                image_size=33, patch_size=7) | changes


def flexible():
    return {k: v for k, v in vision(patch_size=5, num_patches=16).items() if k != "image_size"}


def labels(n):
    names = ["cat", "dog", "fish", "bird"][:n]
    return dict(id2label=dict(enumerate(names)), label2id={k: i for i, k in enumerate(names)})


MODELS = {
    "clip": (tf.CLIPModel, tf.CLIPConfig(
        text_config=text(eos_token_id=3), vision_config=vision(), projection_dim=18)),
    "clip-text": (tf.CLIPTextModelWithProjection, tf.CLIPTextConfig(
        **text(num_hidden_layers=1, projection_dim=14, hidden_act="gelu"))),
    "clip-vision": (tf.CLIPVisionModel, tf.CLIPVisionConfig(**vision(num_hidden_layers=1))),
    "siglip": (tf.SiglipModel, tf.SiglipConfig(
        text_config=text(projection_size=28), vision_config=vision())),
    "siglip-vision": (tf.SiglipVisionModel, tf.SiglipVisionConfig(
        **vision(num_hidden_layers=1, num_channels=2))),
    "siglip2": (tf.Siglip2Model, tf.Siglip2Config(
        text_config=text(projection_size=28, num_hidden_layers=1), vision_config=flexible())),
    "clip-labels": (tf.CLIPForImageClassification, tf.CLIPConfig(
        text_config=text(num_hidden_layers=1), vision_config=vision(num_hidden_layers=1),
        **labels(3))),
    "siglip-labels": (tf.SiglipForImageClassification, tf.SiglipConfig(
        text_config=text(num_hidden_layers=1), vision_config=vision(num_hidden_layers=1),
        **labels(1))),
    "siglip2-labels": (tf.Siglip2ForImageClassification, tf.Siglip2Config(
        text_config=text(num_hidden_layers=1),
        vision_config=flexible() | dict(num_hidden_layers=1), **labels(4))),
}
HALF = {"clip-labels": torch.bfloat16, "siglip-labels": torch.float16,
        "siglip2-labels": torch.bfloat16, "clip-text": torch.float16, "siglip2": torch.bfloat16, "clip-vision": torch.bfloat16}


def randomize(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if "logit" in name:
                weight.copy_(0.3 * noise + 0.8)
            elif "norm" in name.lower() and name.endswith("weight"):
                weight.copy_(1.0 + 0.25 * noise)
            elif weight.ndim == 1:
                weight.copy_(0.5 * noise)
            elif "position" in name or "token_embedding" in name or "probe" in name:
                weight.copy_(0.7 * noise)
            else:
                weight.copy_(1.2 / math.sqrt(weight[0].numel()) * noise)


def inputs_of(name, config, seed):
    rng = np.random.default_rng(seed)
    inputs = {}
    text = getattr(config, "text_config", config)
    if hasattr(text, "vocab_size"):
        ids = rng.integers(4, VOCAB, size=(3, 13))
        mask = np.ones_like(ids)
        for row, end in enumerate([12, 7, 4]):
            ids[row, end] = text.eos_token_id
            ids[row, end + 1:] = 1
            mask[row, end + 1:] = 0
        inputs |= {"input_ids": ids, "attention_mask": mask}
        if "siglip" in text.model_type:
            del inputs["attention_mask"]
    if name.endswith("-labels"):
        inputs = {}
    vision = getattr(config, "vision_config", config)
    if hasattr(vision, "num_patches"):
        shapes = np.array([[3, 5], [4, 4]])
        width = vision.num_channels * vision.patch_size**2
        pixels = rng.standard_normal((2, 17, width)).astype(np.float32)
        mask = (np.arange(17) < shapes.prod(1)[:, None]).astype(np.int64)
        inputs |= {"pixel_values": pixels, "pixel_attention_mask": mask, "spatial_shapes": shapes}
    elif hasattr(vision, "image_size"):
        shape = (2, vision.num_channels, vision.image_size, vision.image_size)
        inputs["pixel_values"] = rng.standard_normal(shape).astype(np.float32)
    return inputs


def processor(name):
    if name == "clip":
        return CLIPImageProcessorPil(size={"shortest_edge": 37},
                                     crop_size={"height": 33, "width": 33})
    if name == "siglip":
        return SiglipImageProcessorPil(size={"height": 33, "width": 33})
    return Siglip2ImageProcessorPil(patch_size=5, max_num_patches=19)


def main():
    torch.set_num_threads(1)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    result = {"pictures": SEEN, "labels": LABELS}
    for number, (name, (kind, config)) in enumerate(MODELS.items()):
        config._attn_implementation = "eager"
        model = kind(config).eval()
        randomize(model, 7000 + number)
        dtype = HALF.get(name, torch.float32)
        round_weights(model, dtype)
        inputs = inputs_of(name, config, 8000 + number)
        with torch.no_grad():
            out = model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
        arrays = {f"in.{k}": v for k, v in inputs.items()}
        for key, value in out.items():
            if isinstance(value, torch.Tensor):
                arrays[f"out.{key}"] = value.float().numpy()
        np.savez_compressed(OUT / f"{name}.npz", **arrays)
        print(name, {k: v.shape for k, v in arrays.items()})
        path = OUT / name
        if name.endswith("-labels"):
            # The tower for texts is in the configuration alone.
            images = processor(name.removesuffix("-labels"))
            images.save_pretrained(path)
            kind = "image-classification"
            pipe = tf.pipeline(kind, model=model, image_processor=images, top_k=None)
            pictures = [str(OUT.parent / "detect" / picture) for picture in SEEN]
            result[name] = [
                [[row["label"], float(row["score"])] for row in pipe(picture)]
                for picture in pictures]
        if name in ("clip", "siglip", "siglip2"):
            images = processor(name)
            byte_level(path)
            images.save_pretrained(path)
            found = []
            for picture in SEEN:
                picture = tf.image_utils.load_image(str(OUT.parent / "detect" / picture))
                pixels = images(picture, return_tensors="pt")
                tokenizer = tf.AutoTokenizer.from_pretrained(path)
                padding = dict(padding="max_length", max_length=35) if name != "clip" else {}
                texts = [f"This is a photo of {label}." for label in LABELS]
                texts = tokenizer(texts, return_tensors="pt", **padding) if padding else [
                    tokenizer(t, return_tensors="pt") for t in texts]
                with torch.no_grad():
                    vector = model.get_image_features(**pixels).pooler_output[0]
                    if padding:
                        texts.pop("attention_mask", None)
                        text = model.get_text_features(input_ids=texts["input_ids"]).pooler_output
                    else:
                        text = torch.cat([model.get_text_features(**t).pooler_output for t in texts])
                unit = lambda v: v / v.norm(dim=-1, keepdim=True)
                logits = unit(text) @ unit(vector) * model.logit_scale.exp()
                if name == "clip":
                    scores = logits.softmax(0)
                else:
                    scores = torch.sigmoid(logits + model.logit_bias)
                found.append(dict(
                    vector=vector.tolist(), scores=scores.tolist(), texts=text.tolist(),
                    pixels=float(pixels["pixel_values"].double().abs().sum())))
            result[name] = found
        model.to(dtype).save_pretrained(path)
        for extra in path.glob("*.json"):
            if extra.name in ("generation_config.json",):
                extra.unlink()
    (OUT / "pictures.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
