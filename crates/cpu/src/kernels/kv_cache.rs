//! `kv_cache`: rows stored in place in the pool's dtype.

use cyb_exec::{Call, ExecError};
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::views::check_index;
use crate::io::{Io, RawTensor};
use crate::kernel::{Build, Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row { op: "kv_cache", name: "kv_cache_rows", supports, build }];

fn supports(call: &Call<'_>) -> bool {
    let stored =
        matches!(call.inputs[0].dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0);
    stored && call.inputs[1].dtype == DType::I32 && call.inputs[2].dtype == DType::F32
}

fn build(b: &mut Build<'_>) -> Result<Box<dyn Kernel>, ExecError> {
    Ok(Box::new(KvCache { isa: b.isa }))
}

#[derive(Debug)]
struct KvCache {
    isa: AnyIsa,
}

impl Kernel for KvCache {
    fn light(&self, inputs: &[RawTensor], _outputs: &[RawTensor]) -> Option<usize> {
        Some(inputs[2].elements())
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (slots, new) = (io.slice::<i32>(1), io.slice::<f32>(2));
        let rows = io.dims(0)[0];
        if slots.is_empty() {
            return Ok(());
        }
        check_index(slots, rows)?;
        let width = new.len() / slots.len();
        let pool = io.output_bytes(0);
        let stride = pool.len() / rows;
        let dtype = io.inputs[0].dtype;
        let mut result = Ok(());
        io.each(slots.len(), |i| {
            // SAFETY: two tokens never share a slot, and each token goes to one worker.
            let to = unsafe { pool.range(slots[i] as usize * stride, stride) };
            let from = &new[i * width..][..width];
            match dtype {
                DType::F32 => {
                    to.chunks_exact_mut(4)
                        .zip(from)
                        .for_each(|(slot, v)| slot.copy_from_slice(&v.to_le_bytes()));
                }
                DType::F16 | DType::BF16 => {
                    self.isa.run(StoreHalf { from, to, bf16: dtype == DType::BF16 });
                }
                _ => {
                    let mut bytes = Vec::with_capacity(stride);
                    match cyb_tensor::quant::encode(dtype, from, &mut bytes) {
                        Ok(()) => to.copy_from_slice(&bytes),
                        Err(why) => result = Err(why.to_string()),
                    }
                }
            }
        });
        result
    }
}

struct StoreHalf<'a> {
    from: &'a [f32],
    to: &'a mut [u8],
    bf16: bool,
}

impl SimdOp for StoreHalf<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        for (from, to) in self.from.chunks(LANES).zip(self.to.chunks_mut(2 * LANES)) {
            let v = s.load_partial(from);
            let mut bits = [0u16; LANES];
            // SAFETY: `bits` holds 16 values.
            unsafe {
                if self.bf16 {
                    s.store_bf16(bits.as_mut_ptr(), v);
                } else {
                    s.store_f16(bits.as_mut_ptr(), v);
                }
            }
            to.chunks_exact_mut(2)
                .zip(bits)
                .for_each(|(slot, v)| slot.copy_from_slice(&v.to_le_bytes()));
        }
    }
}
