"""What ultralytics' steps give for a detector, with OpenCV, Pillow and ONNX Runtime.

Writes detect/: pictures in every format that is read (photos of scikit-image in odd sizes, and a
drawing), expected.json with the detections of each (boxes in pixels of the upright picture), and
resized/, what cv2.resize gives for some of them. The model is 320n.onnx (nudenet 3.4.2) in the
models folder, where `cargo xtask models` puts it.
"""

import ast
import json
import os
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, ImageOps
from skimage import data

OUT = Path(__file__).parent / "detect"
CONFIDENCE, IOU = 0.05, 0.45
# No score may be so close to the threshold that rounding decides.
MARGIN = 2e-3


def pictures():
    astronaut = Image.fromarray(data.astronaut())
    astronaut.crop((90, 0, 421, 431)).resize((241, 313)).save(OUT / "face.png")
    turned = astronaut.crop((37, 0, 426, 437)).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    turned.save(OUT / "turned.jpg", quality=90, subsampling=0, exif=exif)
    astronaut.crop((120, 0, 360, 291)).convert("CMYK").save(OUT / "cmyk.jpg", quality=90)
    cat = Image.fromarray(data.chelsea())
    cat.resize((203, 135)).save(OUT / "cat.webp", lossless=True)
    frames = [astronaut.crop((100 + i, 0, 340 + i, 260)).resize((171, 185)) for i in (0, 90)]
    frames[0].save(OUT / "moving.gif", save_all=True, append_images=frames[1:])
    deep = data.camera()[30:230, 90:301].astype(np.uint16) * 257 - 100
    Image.fromarray(np.clip(deep, 0, 65535).astype(np.uint16)).save(OUT / "deep.png")
    through = astronaut.crop((110, 10, 340, 263)).convert("RGBA")
    through.putalpha(Image.fromarray(data.camera()).resize(through.size))
    through.save(OUT / "through.png")
    drawing = Image.new("RGB", (97, 413), (200, 220, 255))
    pen = ImageDraw.Draw(drawing)
    pen.ellipse((15, 20, 80, 100), fill=(240, 190, 160))
    pen.ellipse((30, 45, 40, 52), fill=(40, 30, 30))
    pen.ellipse((56, 45, 66, 52), fill=(40, 30, 30))
    pen.arc((32, 60, 64, 85), 20, 160, fill=(160, 40, 40), width=4)
    pen.rectangle((10, 105, 88, 300), fill=(60, 80, 160))
    drawing.save(OUT / "drawing.bmp")


def upright(path):
    picture = Image.open(path)
    if picture.mode.startswith("I"):
        deep = np.asarray(picture).astype(np.float64)
        picture = Image.fromarray(np.round(deep / 257).astype(np.uint8))
    picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("RGBA", "LA", "PA"):
        white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
        picture = Image.alpha_composite(white, picture.convert("RGBA"))
    return np.asarray(picture.convert("RGB"))


def letterbox(image, size):
    """ultralytics' LetterBox with its defaults and auto=False."""
    height, width = image.shape[:2]
    r = min(size / height, size / width)
    new = round(width * r), round(height * r)
    dw, dh = (size - new[0]) / 2, (size - new[1]) / 2
    if (width, height) != new:
        image = cv2.resize(image, new, interpolation=cv2.INTER_LINEAR)
    top, bottom = round(dh - 0.1), round(dh + 0.1)
    left, right = round(dw - 0.1), round(dw + 0.1)
    gray = (114, 114, 114)
    image = cv2.copyMakeBorder(image, top, bottom, left, right, cv2.BORDER_CONSTANT, value=gray)
    return image, r, left, top


def iou(a, b):
    width = np.clip(min(a[2], b[2]) - max(a[0], b[0]), 0, None)
    height = np.clip(min(a[3], b[3]) - max(a[1], b[1]), 0, None)
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def detect(session, image, size):
    boxed, gain, left, top = letterbox(image, size)
    x = boxed.transpose(2, 0, 1)[None].astype(np.float32) / 255
    output = session.run(None, {session.get_inputs()[0].name: x})[0][0].T
    scores = output[:, 4:]
    rows = [(scores[i].max(), int(scores[i].argmax()), output[i, :4]) for i in range(len(output))]
    kept = []
    for score, label, (cx, cy, w, h) in sorted(rows, key=lambda row: -row[0]):
        if score <= CONFIDENCE - MARGIN:
            break
        box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
        if all(k[1] != label or iou(k[2], box) <= IOU for k in kept):
            kept.append((score, label, box))
    near = [score for score, *_ in kept if abs(score - CONFIDENCE) < MARGIN]
    assert not near, f"scores at the threshold: {near}"
    height, width = image.shape[:2]
    limits = [width, height, width, height]
    back = lambda box: [
        float(np.clip((v - o) / gain, 0, limit))
        for v, o, limit in zip(box, [left, top, left, top], limits)
    ]
    return [(float(score), label, back(box)) for score, label, box in kept]


def model():
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(os.environ.get("SOMA_MODELS") or Path(data_home) / "soma" / "models") / "320n.onnx"


def main():
    (OUT / "resized").mkdir(parents=True, exist_ok=True)
    pictures()
    session = onnxruntime.InferenceSession(model(), providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    names = ast.literal_eval(metadata["names"])
    size = ast.literal_eval(metadata["imgsz"])[0]
    expected = {}
    for path in sorted(p for p in OUT.iterdir() if p.is_file() and p.suffix != ".json"):
        image = upright(path)
        found = detect(session, image, size)
        print(path.name, image.shape, [(round(s, 3), names[c]) for s, c, _ in found])
        expected[path.name] = {
            "size": [image.shape[1], image.shape[0]],
            "detections": [
                {"class": names[c], "class_id": c, "confidence": s, "bbox": b} for s, c, b in found
            ],
        }
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    cat = upright(OUT / "cat.webp")
    for width, height in [(320, 213), (101, 67), (64, 64), (203, 50), (41, 27)]:
        resized = cv2.resize(cat, (width, height), interpolation=cv2.INTER_LINEAR)
        Image.fromarray(resized).save(OUT / "resized" / f"{width}x{height}.png")
    even = cat[:134, :202]
    Image.fromarray(even).save(OUT / "resized" / "even.png")
    halved = cv2.resize(even, (101, 67), interpolation=cv2.INTER_LINEAR)
    Image.fromarray(halved).save(OUT / "resized" / "even-101x67.png")


main()
