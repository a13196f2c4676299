//! Random tensors from a counter, so that a seed says everything.

use cyb_ir::Fill;
use cyb_tensor::{AlignedBytes, Bytes, DType, Tensor};

use crate::CaseError;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Of a normal distribution with deviation 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| ((bits >> 40) as f64 + 0.5) / (1u64 << 24) as f64;
        let (a, b) = (uniform(self.next()), uniform(self.next()));
        ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
    }

    pub(crate) fn tensor(
        &mut self,
        dtype: DType,
        shape: &[usize],
        fill: &Fill,
    ) -> Result<Tensor, CaseError> {
        let n: usize = shape.iter().product();
        let floats: Vec<f32> = match fill {
            Fill::Normal(scale) => (0..n).map(|_| self.normal() * scale).collect(),
            Fill::Below(below) => {
                (0..n).map(|_| (self.next() % u64::from(*below)) as f32).collect()
            }
            Fill::Ints(ints) => ints.iter().cycle().take(n).map(|&i| i as f32).collect(),
            Fill::Floats(floats) => floats.iter().cycle().take(n).copied().collect(),
        };
        let mut bytes = Vec::new();
        match dtype {
            DType::Bool => bytes.extend(floats.iter().map(|&v| u8::from(v != 0.0))),
            DType::U8 => floats.iter().for_each(|&v| bytes.push(v as u8)),
            DType::I8 => floats.iter().for_each(|&v| bytes.push((v as i8).cast_unsigned())),
            DType::I32 => floats.iter().for_each(|&v| bytes.extend((v as i32).to_le_bytes())),
            DType::I64 => floats.iter().for_each(|&v| bytes.extend((v as i64).to_le_bytes())),
            _ if cyb_tensor::quant::can_encode(dtype) => {
                cyb_tensor::quant::encode(dtype, &floats, &mut bytes)?;
            }
            _ => self.blocks(dtype, n, &mut bytes),
        }
        let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
        Ok(Tensor::new(dtype, shape.to_vec(), bytes)?)
    }

    /// Random codes, for formats without an encoder.
    fn blocks(&mut self, dtype: DType, n: usize, out: &mut Vec<u8>) {
        let layout = dtype.layout();
        let mut decoded = vec![0f32; layout.block];
        while out.len() < n / layout.block * layout.bytes {
            let block: Vec<u8> = (0..layout.bytes).map(|_| self.next() as u8).collect();
            let fits = cyb_tensor::quant::decode(dtype, &block, &mut decoded).is_ok();
            // Blocks of like size: where one outweighs all others, the sums of a tolerance's row are
            // those of a single block.
            let top = decoded.iter().fold(0f32, |top, v| top.max(v.abs()));
            if fits && (0.25..16.0).contains(&top) && decoded.iter().all(|v| v.is_finite()) {
                out.extend(block);
            }
        }
    }
}
