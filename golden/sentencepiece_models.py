"""Small SentencePiece models and the ids that the SentencePiece library gives for texts.

text/spm-NAME.model and text/spm.json. Run with the path of a text to learn pieces from
(languages.txt).
"""

import io
import json
from pathlib import Path

import sentencepiece as spm

HERE = Path(__file__).parent
OUT = HERE / "text"
TEXTS = [
    "Hello world", " two  spaces  and one at the end ", "naïve café, 12345!", "東京 is Tokyo",
    "a\u00a0b\tc\nd", "", " ", "ﬁne ﬂuﬀ", "the quick brown fox jumps over the lazy dog.",
    "\U0001F600 smile", "ＡＢＣ full width", "e\u0301 combining", "▁mark itself", "x",
]
# A small map instead of the 240 kB of the usual ones.
RULES = "\n".join(f"{a:X}\t{b:X}" for a, b in [
    (0xA0, 0x20), (0x9, 0x20), (0xA, 0x20), (0xFF21, 0x41), (0xFF22, 0x42)]) + "\nFB01\t66 69\n"
MODELS = {
    "unigram": dict(model_type="unigram", vocab_size=400, pad_id=3),
    "unigram-bytes": dict(model_type="unigram", vocab_size=600, byte_fallback=True,
                          normalization_rule_name="identity", remove_extra_whitespaces=False),
    "bpe": dict(model_type="bpe", vocab_size=400, bos_id=-1, eos_id=1, unk_id=0),
    "bpe-bytes": dict(model_type="bpe", vocab_size=600, byte_fallback=True,
                      normalization_rule_name="identity", remove_extra_whitespaces=False),
    "deberta": dict(model_type="unigram", vocab_size=300, pad_id=0, bos_id=1, eos_id=2, unk_id=3,
                    pad_piece="[PAD]", bos_piece="[CLS]", eos_piece="[SEP]", unk_piece="[UNK]"),
}


def main():
    rules = HERE / "rules.tsv"
    rules.write_text(RULES)
    result = {"texts": TEXTS}
    lines = [x for x in (HERE / "languages.txt").read_text().splitlines() if x.isascii()]
    for name, options in MODELS.items():
        model = io.BytesIO()
        if "normalization_rule_name" not in options:
            options = options | dict(normalization_rule_tsv=str(rules))
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, character_coverage=1.0,
            hard_vocab_limit=False, minloglevel=2, num_threads=1, **options)
        (OUT / f"spm-{name}.model").write_bytes(model.getvalue())
        processor = spm.SentencePieceProcessor(model_proto=model.getvalue())
        result[name] = [processor.encode(text) for text in TEXTS]
    rules.unlink()
    (OUT / "spm.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
