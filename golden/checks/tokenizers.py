"""Token ids of awkward strings, by llama.cpp, for the vocabularies of the reference models.

Writes golden/text/strings.json (the strings) and golden/text/<model>.json: for each string the ids as plain text
and with control tokens read, and the texts that come back from their ids otherwise than they went.
golden/text/smollm2.vocab.json.gz is the vocabulary of the demo model, so that equality can be tested without it.

Needs llama-cpp-python, so it is run by hand, and the models in the models folder (`cargo xtask models --all`).
"""

import ctypes
import gzip
import json
import os
from pathlib import Path

import llama_cpp
from gguf import GGUFReader
from llama_cpp import Llama

OUT = Path(__file__).parent.parent / "text"
MODELS = Path(
    os.environ.get("SOMA_MODELS")
    or Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share")) / "soma/models"
)
FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3": "gemma-3-270m-q4_k_m.gguf",
    "qwen2.5": "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
}
# Models with the vocabulary of another.
SAME = {"Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf": "qwen2.5"}


def strings():
    words = ["hello", "Zürich", "naïve", "l'été", "ЖИВОТ", "北京大学", "東京タワー", "서울특별시",
             "مرحبا بالعالم", "नमस्ते दुनिया", "สวัสดีชาวโลก", "שלום עולם", "Γειά σου", "ქართული",
             "Tiếng Việt", "𝕳𝖊𝖑𝖑𝖔", "ﬁnancial", "ǅungla", "straße", "İstanbul", "ſhip"]
    out = list(words)
    out += [f" {w}" for w in words] + [f"{w} {w}" for w in words[:8]] + [f"{w}\n" for w in words[:8]]
    out += [f"I{c} they{c} X{c}" for c in ("'m", "'ll", "'re", "'ve", "'d", "'s", "'t", "'S", "'LL", "’s", "'x")]
    out += ["don't can't won't it's", "'tis the 'season'", "'''", "''s", "o'clock", "rock'n'roll"]
    out += ["1" * n for n in (1, 2, 3, 4, 5, 7, 10, 31)]
    out += ["3.14159", "1,234,567.89", "1e-10", "0x1F", "٣٤٥", "Ⅳ½²", "12ab34", "a1b2", "2024-01-31", "10:45", "$5.00", "50%"]
    out += [" " * n for n in (1, 2, 3, 4, 5, 8, 16, 17, 33)]
    out += ["\n" * n for n in (1, 2, 3, 4, 7, 32)] + ["\t" * n for n in (1, 2, 3, 9)]
    out += [" \n", "\n ", " \n ", "\r\n", "\r\n\r\n", "\t\n\t", "a \n b", "a\n\n\nb", "a  b", "a   b",
            "a \t b", "  a", "a  ", "  a  ", "\n a", "a\r", "\u00a0a\u00a0b", "\u3000全角", "\u2003em", "\u200bzero",
            "\u0085nel", "a\u2028b", "\ufeffbom", "  \n  \n", "x\n    y\n        z\n"]
    out += ["👍", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇨🇭🇯🇵", "❤️", "e\u0301", "a\u0308\u0304", "क्षि", "ก็", "नि", "각",
            "\u1100\u1161\u11a8", "Z͑ͫa̴l̶g̷o", "🙂🙃 text 🙂", "⌨️", "©®™", "→⇒∀∃∈", "ａｂｃ１２３", "\U000e0067", "\U0010ffff"]
    out += ["\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80\x9f", "\ufffd", "\ufffe"]
    out += ["def f(x):\n    return x**2  # square\n", "if (a->b && !c) { d[i] += 1; }", "for(;;){}", "x = {'a': \"b\"}",
            "SELECT * FROM t WHERE a<>'b';", "<div class=\"x\">hi</div>", "#include <stdio.h>\n\nint main(void) {\n\treturn 0;\n}\n",
            "https://example.com/a?b=c&d=%20", "user@example.org", "C:\\Windows\\System32", "snake_case camelCase PascalCase kebab-case",
            "!!!", "...", "?!", "--", "---", "====", "~~~~~", "```rust\nfn main() {}\n```", "(x):\n", "->", " ->", "#!/bin/sh",
            "$HOME/${x}", "a=b", "\\n", "\\\\", "\"quoted\"", "«guillemets»", "“smart”", "—", "…", "<<<>>>", "{{}}", "[[x]]", "@@", "&amp;"]
    out += ["<|im_start|>", "<|im_end|>", "a<|im_end|>b", "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>", "<s>", "</s>", "<bos>x",
            "<eos>", "<pad>", "<unk>", "<start_of_turn>user\nhi<end_of_turn>\n", "</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
            "<0x0A>", "<unused0>", "<mask>", "[INST]", "<repo_name>", "<b>bold</b>", "<table><tr><td>x</td></tr></table>", "<|im_end", "<|", "[multimodal]",
            "<start_of_image>", "▁", "▁▁a", "a▁b", "Ġ", "Ċa", "##ing"]
    out += ["a" * 200, "ab" * 100, "supercalifragilisticexpialidocious" * 3, "北" * 60, "👍" * 30, "x " * 60, "=" * 90, "0" * 100, "é" * 50,
            "The quick brown fox jumps over the lazy dog.", "THE QUICK BROWN FOX", "tHe qUiCk", "Hello, World! How are you?",
            "  Leading and trailing  ", "Line one\nLine two\n\nLine four", "tab\tseparated\tvalues", "mixed 中文 and English 文字",
            "Dr. Smith's 3 cats (aged 2, 4 & 7) didn't eat.", "e.g. i.e. etc.", "a,b;c:d", "a.b.c.d", "1.2.3.4", "Ünïcödé", "ÀÉÎÕÜ", ""]
    return list(dict.fromkeys(out))


def detokenize(model, ids):
    vocabulary = llama_cpp.llama_model_get_vocab(model.model)
    buffer = ctypes.create_string_buffer(4096)
    pieces = []
    for token in ids:
        length = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, len(buffer), 0, True)
        assert length >= 0
        pieces.append(buffer.raw[:length])
    return b"".join(pieces).decode()


def rows_of(model, texts):
    encode = lambda text, special: model.tokenize(text.encode(), add_bos=False, special=special)
    plain = [encode(text, False) for text in texts]
    back = [detokenize(model, ids) for ids in plain]
    return {
        "plain": plain,
        "special": [encode(text, True) for text in texts],
        "with_bos": model.tokenize(b"Hello", add_bos=True, special=False),
        "changed": {text: came for text, came in zip(texts, back) if came != text},
    }


def main():
    OUT.mkdir(exist_ok=True)
    texts = strings()
    (OUT / "strings.json").write_text(json.dumps(texts, ensure_ascii=True, indent=0) + "\n")
    for name, file in FILES.items():
        model = Llama(str(MODELS / file), vocab_only=True, verbose=False)
        rows = rows_of(model, texts)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in rows.items())
        (OUT / f"{name}.json").write_text("{\n" + lines + "\n}\n")
    for file, name in SAME.items():
        model = Llama(str(MODELS / file), vocab_only=True, verbose=False)
        assert rows_of(model, texts) == json.loads((OUT / f"{name}.json").read_text()), file
    fields = GGUFReader(MODELS / FILES["smollm2"]).fields
    vocabulary = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}
    data = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":")).encode()
    (OUT / "smollm2.vocab.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    print(len(texts), "strings")


if __name__ == "__main__":
    main()
