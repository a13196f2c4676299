//! `affine_quantize`: floats as 8-bit codes.

use cyb_exec::Call;
use cyb_simd::{AnyIsa, Isa, LANES, SimdOp};
use cyb_tensor::DType;

use super::attrs_of;
use crate::io::{Io, RawTensor};
use crate::kernel::{Kernel, Row};

pub(crate) static ROWS: &[Row] = &[Row {
    op: "affine_quantize",
    name: "affine_quantize",
    supports,
    build: |b| Ok(Box::new(Quantize { isa: b.isa })),
}];

/// Elements of a unit where there is one scale.
const UNIT: usize = 4096;

/// One scale, or one for each index of one axis.
fn supports(call: &Call<'_>) -> bool {
    let [x, scale, zero] = call.inputs[..] else { return false };
    let one_axis = |f: &cyb_ir::Fact| {
        let long = f.shape.iter().filter(|d| d.known() != Some(1)).count();
        long <= 1 && f.rank() <= x.rank()
    };
    x.dtype == DType::F32
        && scale.dtype == DType::F32
        && matches!(attrs_of(call.op).dtype("dtype"), Ok(DType::U8 | DType::I8))
        && one_axis(scale)
        && (zero.shape == scale.shape || zero.shape.iter().all(|d| d.known() == Some(1)))
}

#[derive(Debug)]
struct Quantize {
    isa: AnyIsa,
}

impl Kernel for Quantize {
    fn light(&self, _inputs: &[RawTensor], outputs: &[RawTensor]) -> Option<usize> {
        Some(outputs[0].elements() / 4)
    }

    fn run(&self, io: &Io<'_>) -> Result<(), String> {
        let (x, scales, zeros) = (io.slice::<f32>(0), io.slice::<f32>(1), io.bytes(2));
        let out = io.output_bytes(0);
        if x.is_empty() {
            return Ok(());
        }
        let signed = io.outputs[0].dtype == DType::I8;
        let zero = |i: usize| {
            let code = zeros[if zeros.len() == 1 { 0 } else { i }];
            if signed { f32::from(code.cast_signed()) } else { f32::from(code) }
        };
        let (dims, own) = (io.dims(0), io.dims(1));
        // Elements side by side that share a scale.
        let inner = match own.iter().position(|&n| n > 1) {
            None => x.len(),
            Some(axis) => dims[dims.len() - own.len() + axis + 1..].iter().product(),
        };
        let across = inner == 1;
        let unit = match () {
            () if across => scales.len() * UNIT.div_ceil(scales.len()),
            () if scales.len() == 1 => UNIT,
            () => inner,
        };
        let mut row = [0f32; LANES];
        let mut points = [0f32; LANES];
        io.each(x.len().div_ceil(unit), |i| {
            let start = i * unit;
            let len = unit.min(x.len() - start);
            // SAFETY: units do not overlap and each goes to one worker.
            let to = unsafe { out.range(start, len) };
            let from = &x[start..start + len];
            if across {
                for (from, to) in from.chunks(scales.len()).zip(to.chunks_mut(scales.len())) {
                    for at in (0..from.len()).step_by(LANES) {
                        let n = LANES.min(from.len() - at);
                        row[..n].copy_from_slice(&scales[at..at + n]);
                        (0..n).for_each(|i| points[i] = zero(at + i));
                        self.isa.run(Line {
                            from: &from[at..at + n],
                            to: &mut to[at..at + n],
                            scale: &row,
                            zero: &points,
                            signed,
                        });
                    }
                }
                return;
            }
            let number = start / inner % scales.len();
            row.fill(scales[number]);
            points.fill(zero(number));
            self.isa.run(Line { from, to, scale: &row, zero: &points, signed });
        });
        Ok(())
    }
}

/// Elements whose scales and zero points repeat every vector.
struct Line<'a> {
    from: &'a [f32],
    to: &'a mut [u8],
    scale: &'a [f32; LANES],
    zero: &'a [f32; LANES],
    signed: bool,
}

impl SimdOp for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn eval<S: Isa>(self, s: S) {
        let Line { from, to, scale, zero, signed } = self;
        let (low, high) = if signed { (-128.0, 127.0) } else { (0.0, 255.0) };
        // SAFETY: both hold 16 floats.
        let (scale, zero) = unsafe { (s.load(scale.as_ptr()), s.load(zero.as_ptr())) };
        let (low, high) = (s.splat(low), s.splat(high));
        for (from, to) in from.chunks(LANES).zip(to.chunks_mut(LANES)) {
            let quotient = s.div(s.load_padded(from, 1.0), scale);
            // NaN may not become an integer, and what no code is near may not leave their range.
            let size = s.abs(quotient);
            let number =
                s.select_gt(s.add(size, s.splat(1.0)), s.splat(0.5), quotient, s.splat(0.0));
            let near = s.min(s.max(number, s.splat(-1e6)), s.splat(1e6));
            let whole = s.to_float(s.to_int(near));
            let code = s.min(s.max(s.add(whole, zero), low), high);
            // The code of NaN is the lowest.
            let code = s.select_gt(s.add(size, s.splat(1.0)), s.splat(0.5), code, low);
            let code = s.to_int(code);
            if to.len() == LANES {
                // SAFETY: 16 bytes are writable.
                unsafe { s.store_i8(to.as_mut_ptr().cast(), code) };
            } else {
                let codes = s.to_array_i(code);
                to.iter_mut().zip(codes).for_each(|(slot, code)| *slot = code as u8);
            }
        }
    }
}
