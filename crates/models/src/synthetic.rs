//! Models of published shapes with random weights, so that hardware can be measured without a
//! file. Real blocks of each storage format, of the size that trained weights have: every
//! activation stays finite.

use cyb_formats::{Metadata, ModelFile};
use cyb_tensor::{AlignedBytes, Bytes, DType, Tensor, byte_len, quant};

use crate::ModelError;

/// Sizes of a model to be made up.
struct Shape {
    name: &'static str,
    architecture: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    feed_forward: usize,
    vocabulary: usize,
    context: usize,
    theta: f32,
    /// Whether the embedding is the output head too.
    tied: bool,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "llama-8b",
        architecture: "llama",
        layers: 32,
        hidden: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 14336,
        vocabulary: 128256,
        context: 131072,
        theta: 500_000.0,
        tied: false,
    },
    Shape {
        name: "llama-70b",
        architecture: "llama",
        layers: 80,
        hidden: 8192,
        heads: 64,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 28672,
        vocabulary: 128256,
        context: 131072,
        theta: 500_000.0,
        tied: false,
    },
    Shape {
        name: "qwen2-1.5b",
        architecture: "qwen2",
        layers: 28,
        hidden: 1536,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        feed_forward: 8960,
        vocabulary: 151936,
        context: 32768,
        theta: 1_000_000.0,
        tied: false,
    },
    Shape {
        name: "qwen3-0.6b",
        architecture: "qwen3",
        layers: 28,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        feed_forward: 3072,
        vocabulary: 151936,
        context: 40960,
        theta: 1_000_000.0,
        tied: true,
    },
];

/// Storage formats that a spec may name.
const DTYPES: [DType; 4] = [DType::Q4_K, DType::Q8_0, DType::F16, DType::BF16];

/// A model of a published shape with random weights: `llama-8b:q4_k`.
///
/// The same spec gives the same bytes. With a format of 256-element blocks the output head is
/// `Q6_K`, as in files that people use.
pub fn synthetic(spec: &str) -> Result<ModelFile, ModelError> {
    let fail = |why: String| ModelError::Synthetic { spec: spec.to_owned(), why };
    let (name, format) = spec.split_once(':').ok_or_else(|| fail(usage()))?;
    let shape = SHAPES.iter().find(|s| s.name == name).ok_or_else(|| fail(usage()))?;
    let dtype: DType = format.parse().map_err(|_| fail(usage()))?;
    if !DTYPES.contains(&dtype) {
        return Err(fail(usage()));
    }
    shape.model(spec, dtype).map_err(fail)
}

fn usage() -> String {
    let shapes: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
    let dtypes = DTYPES.map(DType::name);
    format!("give SHAPE:FORMAT with one of {} and one of {}", shapes.join(" "), dtypes.join(" "))
}

impl Shape {
    fn model(&self, spec: &str, dtype: DType) -> Result<ModelFile, String> {
        let planned = self.tensors(dtype);
        let sizes = planned.iter().map(|(_, dtype, shape)| byte_len(*dtype, shape));
        let sizes: Vec<usize> =
            sizes.collect::<Result<_, _>>().map_err(|problem| problem.to_string())?;
        let total: usize = sizes.iter().sum();
        if let Some(free) = available_memory().filter(|&free| total as u64 > free) {
            let gb = |n: u64| n as f64 / 1e9;
            return Err(format!(
                "it takes {:.1} GB and {:.1} GB of memory are free; take a smaller shape or format",
                gb(total as u64),
                gb(free)
            ));
        }
        let mut patterns = Patterns::default();
        let mut tensors = indexmap::IndexMap::new();
        for (seed, ((name, dtype, shape), size)) in planned.into_iter().zip(sizes).enumerate() {
            let mut bytes = AlignedBytes::zeroed(size);
            match shape.as_slice() {
                [_] => fill_ones(bytes.as_mut_slice()),
                _ => patterns.fill(dtype, bytes.as_mut_slice(), seed as u64)?,
            }
            let tensor = Tensor::new(dtype, shape, Bytes::owned(bytes));
            tensors.insert(name, tensor.map_err(|problem| problem.to_string())?);
        }
        Ok(ModelFile::in_memory(self.metadata(spec), tensors))
    }

    fn metadata(&self, spec: &str) -> Metadata {
        let mut m = Metadata::new(spec);
        m.insert("general.architecture", self.architecture);
        m.insert("general.name", spec);
        let sizes = [
            ("vocab_size", self.vocabulary),
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
        ];
        for (key, n) in sizes {
            m.insert(format!("{}.{key}", self.architecture), n as u64);
        }
        m.insert(format!("{}.attention.layer_norm_rms_epsilon", self.architecture), 1e-6f32);
        m.insert(format!("{}.rope.freq_base", self.architecture), self.theta);
        m
    }

    /// Names, formats and shapes of the tensors of the architecture.
    fn tensors(&self, dtype: DType) -> Vec<(String, DType, Vec<usize>)> {
        let head = if dtype.layout().block == 256 { DType::Q6_K } else { dtype };
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let table = vec![self.vocabulary, self.hidden];
        let mut all = vec![(
            "token_embd.weight".to_owned(),
            if self.tied { head } else { dtype },
            table.clone(),
        )];
        for layer in 0..self.layers {
            let mut matrix = |name: &str, out, width| {
                all.push((format!("blk.{layer}.{name}.weight"), dtype, vec![out, width]));
            };
            matrix("attn_q", q, self.hidden);
            matrix("attn_k", kv, self.hidden);
            matrix("attn_v", kv, self.hidden);
            matrix("attn_output", self.hidden, q);
            matrix("ffn_gate", self.feed_forward, self.hidden);
            matrix("ffn_up", self.feed_forward, self.hidden);
            matrix("ffn_down", self.hidden, self.feed_forward);
            let mut vector = |name: &str, n| {
                all.push((format!("blk.{layer}.{name}"), DType::F32, vec![n]));
            };
            vector("attn_norm.weight", self.hidden);
            vector("ffn_norm.weight", self.hidden);
            match self.architecture {
                "qwen2" => {
                    vector("attn_q.bias", q);
                    vector("attn_k.bias", kv);
                    vector("attn_v.bias", kv);
                }
                "qwen3" => {
                    vector("attn_q_norm.weight", self.head_dim);
                    vector("attn_k_norm.weight", self.head_dim);
                }
                _ => {}
            }
        }
        all.push(("output_norm.weight".into(), DType::F32, vec![self.hidden]));
        if !self.tied {
            all.push(("output.weight".into(), head, table));
        }
        all
    }
}

/// Blocks of random weights, one run of them a format. Tensors are filled by copying from a random
/// place of the run at a time: gigabytes take as long as their pages take to appear.
#[derive(Default)]
struct Patterns {
    made: Vec<(DType, Vec<u8>)>,
}

/// Elements of a run: many more than a cache holds of it, a prime number of larger blocks.
const RUN: usize = 256 * 8191;
/// Bytes copied from one place, about.
const PIECE: usize = 1 << 14;

impl Patterns {
    fn fill(&mut self, dtype: DType, out: &mut [u8], seed: u64) -> Result<(), String> {
        let run = self.run(dtype)?;
        let block = dtype.layout().bytes;
        let piece = PIECE / block * block;
        let places = (run.len() - piece) / block;
        let mut random = Random(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1);
        for part in out.chunks_mut(piece) {
            let start = (random.next() % places as u64) as usize * block;
            part.copy_from_slice(&run[start..start + part.len()]);
        }
        Ok(())
    }

    fn run(&mut self, dtype: DType) -> Result<&[u8], String> {
        if let Some(i) = self.made.iter().position(|(d, _)| *d == dtype) {
            return Ok(&self.made[i].1);
        }
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        let values: Vec<f32> = (0..RUN).map(|_| random.weight()).collect();
        let mut bytes = Vec::new();
        quant::encode(dtype, &values, &mut bytes).map_err(|problem| problem.to_string())?;
        self.made.push((dtype, bytes));
        self.run(dtype)
    }
}

fn fill_ones(bytes: &mut [u8]) {
    bytes.chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&1f32.to_le_bytes()));
}

/// Marsaglia's xorshift: <https://doi.org/10.18637/jss.v008.i14>.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// About normal with a deviation of 0.02, as trained weights are: the sum of four uniforms.
    fn weight(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| ((bits >> (16 * i)) & 0xFFFF) as f32 / 65536.0).sum();
        (sum - 2.0) * 0.02 * 3f32.sqrt()
    }
}

/// Bytes of memory that can be had without swapping, where the system says so.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests;
