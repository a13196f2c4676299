//! Names of pre-tokenizers and what they mean.
//!
//! Names: llama.cpp, `src/llama-vocab.cpp` (`tokenizer_pre`). Expressions: the models' own
//! `tokenizer.json`, where llama.cpp simplifies them (tekken, gpt-4o) as they are there.

use super::{Cl100k, Cut};
use crate::TextError;

/// A pre-tokenizer and what else its name implies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreTokenizerSpec {
    pub(crate) names: &'static [&'static str],
    pub(crate) cuts: &'static [Cut],
    /// A word that is a token is that token, whatever the merges make of it.
    pub(crate) ignore_merges: bool,
    /// BOS is added unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// SEP is added unless the file says otherwise.
    pub(crate) add_sep: bool,
    /// Tokens are characters with `▁` for a space, not bytes.
    pub(crate) spm_bpe: bool,
}

const fn plain(names: &'static [&'static str], cuts: &'static [Cut]) -> PreTokenizerSpec {
    PreTokenizerSpec {
        names,
        cuts,
        ignore_merges: false,
        add_bos: false,
        add_sep: false,
        spm_bpe: false,
    }
}

const fn whole_words(names: &'static [&'static str], cuts: &'static [Cut]) -> PreTokenizerSpec {
    PreTokenizerSpec { ignore_merges: true, ..plain(names, cuts) }
}

const fn cl100k(digits: usize) -> Cut {
    Cut::Cl100k(Cl100k { digits, marks: false, contractions: true })
}

const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEEPSEEK_V3: &[Cut] = &[
    Cut::Pattern(r"\p{N}{1,3}"),
    Cut::Pattern(r"[一-龥぀-ゟ゠-ヿ]+"),
    Cut::Pattern(DEEPSEEK_WORDS),
];

const DEEPSEEK_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const SENTENCE_PARTS: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// Letters with case, as DeepSeek's first tokenizer lists them.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

/// Every pre-tokenizer with a public name.
pub(super) const SPECS: &[PreTokenizerSpec] = &[
    plain(
        &["default"],
        &[
            Cut::Pattern(r"[\p{P}\$\+<=>\^~\|]+"),
            Cut::Gpt2,
            Cut::Pattern(r"\p{N}+"),
            Cut::Pattern(r"[0-9][0-9][0-9]"),
        ],
    ),
    plain(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        &[Cut::Gpt2],
    ),
    PreTokenizerSpec {
        add_sep: true,
        ..plain(&["jina-v1-en", "jina-v2-code", "roberta-bpe"], &[Cut::Gpt2])
    },
    plain(
        &[
            "starcoder",
            "refact",
            "command-r",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[Cut::Digits, Cut::Gpt2],
    ),
    PreTokenizerSpec {
        add_bos: true,
        ..whole_words(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[cl100k(3)],
        )
    },
    plain(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[cl100k(3)]),
    plain(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[cl100k(1)],
    ),
    plain(&["qwen35"], &[Cut::Cl100k(Cl100k { digits: 1, marks: true, contractions: true })]),
    plain(&["ufakzeka"], &[Cut::Cl100k(Cl100k { digits: 1, marks: false, contractions: false })]),
    plain(&["laguna"], &[Cut::Lines, cl100k(1)]),
    whole_words(&["minicpm5"], &[Cut::Pattern(r"\p{N}{1,3}"), cl100k(0)]),
    plain(
        &["deepseek-llm"],
        &[
            Cut::Pattern(r"[\r\n]"),
            Cut::Pattern(DEEPSEEK_LETTERS),
            Cut::Pattern(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Cut::Pattern(r"\s+$"),
            Cut::Pattern(r"[一-龥ࠀ-一가-퟿]+"),
            Cut::Pattern(r"\p{N}+"),
        ],
    ),
    plain(
        &["deepseek-coder"],
        &[
            Cut::Pattern(r"[\r\n]"),
            Cut::Pattern(r"\s?\p{L}+"),
            Cut::Pattern(r"\s?\p{P}+"),
            Cut::Pattern(r"[一-龥ࠀ-一가-퟿]+"),
            Cut::Digits,
        ],
    ),
    plain(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], DEEPSEEK_V3),
    plain(
        &["spark2_5"],
        &[
            Cut::Pattern(r"\p{N}{1,3}"),
            Cut::Pattern(r"[一-龥぀-ゟ゠-ヿ]+"),
            Cut::Pattern(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            ),
            Cut::Digits,
        ],
    ),
    whole_words(
        &["youtu"],
        &[
            Cut::Pattern(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
            Cut::Pattern(YOUTU),
        ],
    ),
    plain(
        &["falcon"],
        &[Cut::Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Cut::Gpt2, Cut::Pattern(r"[0-9][0-9][0-9]")],
    ),
    plain(&["poro-chat", "bloom", "gpt3-finnish"], &[Cut::Pattern(SENTENCE_PARTS)]),
    plain(&["viking"], &[Cut::Pattern(SENTENCE_PARTS), Cut::Digits]),
    PreTokenizerSpec { add_bos: true, ..whole_words(&["tekken"], &[Cut::Pattern(TEKKEN)]) },
    PreTokenizerSpec {
        add_bos: true,
        ..plain(
            &["chameleon"],
            &[
                Cut::Pattern(r"<sentinel:[0-9]+>"),
                Cut::Pattern(r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
                Cut::Pattern(r"([\t\n]|    |  )"),
                Cut::Digits,
                Cut::Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
                Cut::Gpt2,
            ],
        )
    },
    plain(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[Cut::Pattern(O200K)]),
    whole_words(&["granite-embed-multi-97m"], &[Cut::Pattern(O200K)]),
    plain(
        &["tiny_aya", "cohere2moe"],
        &[Cut::Pattern(r"\d{1,3}(?=(?:\d{3})*\b)"), Cut::Pattern(O200K)],
    ),
    plain(&["superbpe"], &[Cut::Pattern(r"\p{N}+"), Cut::Pattern(r"(?=(\d{3})+(?!\d))")]),
    plain(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Cut::Pattern(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
    ),
    plain(
        &["seed-coder"],
        &[Cut::Pattern(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
    ),
    plain(
        &["exaone-moe"],
        &[Cut::Pattern(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
    ),
    plain(
        &["jais-2"],
        &[Cut::Pattern(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        )],
    ),
    plain(
        &["afmoe"],
        &[
            Cut::Pattern(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"),
            Cut::Pattern(r"[一-鿿㐀-䶿\x{F900}-\x{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"),
            Cut::Pattern(DEEPSEEK_WORDS),
        ],
    ),
    PreTokenizerSpec {
        add_bos: true,
        spm_bpe: true,
        ..plain(&["gemma4", "granite-embed-multi-311m"], &[Cut::Lines])
    },
    PreTokenizerSpec { spm_bpe: true, ..plain(&["sarvam-moe"], &[Cut::Lines]) },
];

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SPECS.iter().flat_map(|spec| spec.names.iter().copied())
}

impl PreTokenizerSpec {
    /// The pre-tokenizer of this name; without a name the one that files from before there were
    /// names expect.
    ///
    /// # Errors
    /// If the name is not known; the error lists those that are.
    pub(crate) fn from_name(name: Option<&str>) -> Result<&'static Self, TextError> {
        let name = name.filter(|name| !name.is_empty()).unwrap_or("default");
        let found = SPECS.iter().find(|spec| spec.names.contains(&name));
        found.ok_or_else(|| TextError::UnknownPreTokenizer {
            name: name.to_owned(),
            known: names().collect::<Vec<_>>().join(", "),
        })
    }
}
