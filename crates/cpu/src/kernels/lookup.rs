//! `lookup`: 8-bit codes through a table.

use cyb_exec::Call;
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};

use super::integer::codes;
use crate::io::{Io, RawTensor};
use crate::kernel::{Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row {
    op: "lookup",
    name: "lookup",
    supports,
    build: |b| Ok(Box::new(Lookup { isa: b.isa })),
}];

/// Codes of a unit.
const UNIT: usize = 8192;

fn supports(call: &Call<'_>) -> bool {
    let [x, table] = call.inputs[..] else { return false };
    codes(x.dtype) && codes(table.dtype)
}

#[derive(Debug)]
struct Lookup {
    isa: AnyIsa,
}

impl Kernel for Lookup {
    fn reads_bytes(&self, _input: usize) -> bool {
        true
    }

    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements() / 8)
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let x = io.bytes(0);
        let Some(table) = io.bytes(1).first_chunk::<256>() else {
            return Err(format!("a table has 256 codes, not {}", io.bytes(1).len()));
        };
        let out = io.output_bytes(0);
        io.each(x.len().div_ceil(UNIT), |unit| {
            let start = unit * UNIT;
            let from = &x[start..x.len().min(start + UNIT)];
            // SAFETY: units do not overlap and each goes to one worker.
            let to = unsafe { out.range(start, from.len()) };
            self.isa.run(Part { table, from, to });
        });
        Ok(())
    }
}

struct Part<'a> {
    table: &'a [u8; 256],
    from: &'a [u8],
    to: &'a mut [u8],
}

impl SimdOp for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Part { table, from, to } = self;
        let (whole, rest) = from.as_chunks::<LANES>();
        let (to_whole, to_rest) = to.as_chunks_mut::<LANES>();
        for (from, to) in whole.iter().zip(to_whole) {
            // SAFETY: both are 16 bytes.
            unsafe {
                let codes = s.lookup_i(table, s.load_u8(from.as_ptr()));
                s.store_i8(to.as_mut_ptr().cast(), codes);
            }
        }
        for (&code, to) in rest.iter().zip(to_rest) {
            *to = table[usize::from(code)];
        }
    }
}
