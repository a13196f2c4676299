//! Packed weights read back are the weights.

use super::*;

/// Reads element (row, column) back from the planes, by the description in `packed.cuh`.
fn element(kind: Kind, p: &Packed, row: usize, column: usize) -> f32 {
    let parts = kind.parts();
    let (tile, r) = (row / TILE, row % TILE);
    let (g, upper) = (r % 8, r / 8);
    let (chunk, within) = (column / kind.chunk(), column % kind.chunk());
    let (unit, j) = (within / 64, within % 64 / 32);
    let e = within % 32;
    let (half, t, i) = (e / 16, e % 16 / 4, e % 4);
    let lane = 4 * g + t;
    let register = 2 * half + upper;
    let record = (tile * p.chunks + chunk) * kind.record();
    let base = |plane: usize| record + parts[..plane].iter().sum::<usize>();
    let low = |at: usize| p.bytes[base(0) + at];
    let code = if kind.bits == 8 {
        low(((unit * 2 + j) * 32 + lane) * 16 + register * 4 + i)
    } else {
        low((unit * 32 + lane) * 16 + (j * 2 + upper) * 4 + i) >> (4 * half) & 15
    };
    let high = |at: usize| p.bytes[base(1) + at];
    let code = match kind.bits {
        5 => code | (high((unit * 32 + lane) * 4 + i) >> (7 - register - 4 * j) & 1) << 4,
        6 => code | (high((unit * 32 + lane) * 8 + j * 4 + i) >> (6 - 2 * register) & 3) << 4,
        _ => code,
    };
    let signed = !matches!(kind.scales, Scales::F16Min | Scales::SuperMin) || kind.bits == 8;
    let shift = 8 - kind.bits;
    let code = if signed { f32::from((code << shift) as i8 >> shift) } else { f32::from(code) };
    let s = |at: usize| p.bytes[base(2) + at];
    let half_at = |plane: usize, at: usize| {
        let at = base(plane) + at;
        f16::from_le_bytes([p.bytes[at], p.bytes[at + 1]]).to_f32()
    };
    let float = |at: usize| f32::from_le_bytes(p.bytes[base(2) + at..][..4].try_into().unwrap());
    let per_row = 64 / kind.group;
    let group = (within % 64) / kind.group;
    match kind.scales {
        Scales::F16 => code * half_at(2, (unit * 8 + g) * 8 + upper * 4 + j * 2),
        Scales::F16Min => {
            let at = (unit * 8 + g) * 16 + upper * 8;
            code * half_at(2, at + j * 2) + half_at(2, at + 4 + j * 2)
        }
        Scales::SuperMin => {
            let at = ((g * 4 + unit) * 2 + upper) * 4;
            let super_at = (g * 2 + upper) * 4;
            code * (half_at(3, super_at) * f32::from(s(at + j)))
                - half_at(3, super_at + 2) * f32::from(s(at + 2 + j))
        }
        Scales::Super => {
            let at = ((g * 4 + unit) * 2 + upper) * 4 + group;
            code * (half_at(3, (g * 2 + upper) * 2) * f32::from(s(at) as i8))
        }
        Scales::F32 => code * float(((unit * TILE + r) * per_row + group) * 4),
        Scales::F32Min => {
            let at = (unit * TILE + r) * per_row * 2 + group;
            code * float(at * 4) + float((at + per_row) * 4)
        }
        Scales::Row => unreachable!("floats have a reader of their own"),
    }
}

#[test]
fn packed_weights_are_the_weights() {
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 56) as u8
    };
    for &dtype in DType::ALL.iter().filter(|d| d.is_quantized()) {
        let kind = Kind::of(dtype).unwrap();
        let layout = dtype.layout();
        let k = 3 * layout.block;
        let stride = dtype.bytes_for(k).unwrap();
        let mut rows = |n: usize| -> Vec<u8> {
            let mut bytes = Vec::new();
            let mut decoded = vec![0f32; layout.block];
            while bytes.len() < n * stride {
                let block: Vec<u8> = (0..layout.bytes).map(|_| random()).collect();
                let fits = cyb_tensor::quant::decode(dtype, &block, &mut decoded).is_ok();
                if fits && decoded.iter().all(|v| v.is_finite() && v.abs() < 1e4) {
                    bytes.extend(block);
                }
            }
            bytes
        };
        let (a, b) = (rows(21), rows(5));
        let parts = [Rows { dtype, n: 21, bytes: &a }, Rows { dtype, n: 5, bytes: &b }];
        let packed = pack(kind, k, &parts, false, 3);
        assert_eq!(packed.tiles, 3);
        let sizes = [21, 5].map(|n| packed_bytes(dtype, n, k).unwrap());
        assert_eq!(sizes.iter().sum::<usize>(), packed.bytes.len());
        for (first, n, bytes) in [(0, 21, &a), (32, 5, &b)] {
            let mut want = vec![0f32; n * k];
            cyb_tensor::quant::decode(dtype, bytes, &mut want).unwrap();
            for (i, want) in want.iter().enumerate() {
                let got = element(kind, &packed, first + i / k, i % k);
                assert_eq!(*want, got, "{dtype}: row {}, column {}", i / k, i % k);
            }
        }
        // What pads the width and the last tiles is nothing.
        if k < packed.chunks * kind.chunk() {
            assert_eq!(element(kind, &packed, 0, packed.chunks * kind.chunk() - 1), 0.0);
        }
        assert_eq!(element(kind, &packed, 30, 0), 0.0, "{dtype}");
    }
}

/// Reads element (row, column) of float weights back.
fn float_element(kind: Kind, p: &Packed, row: usize, column: usize) -> f32 {
    let (tile, r) = (row / TILE, row % TILE);
    let (chunk, within) = (column / kind.chunk(), column % kind.chunk());
    let record = &p.bytes[(tile * p.chunks + chunk) * kind.record()..];
    let lane = r % 8 * 4 + within % 16 / 4;
    let within_lane = (within % 4 / 2 * 2 + r / 8) * 4 + within % 2 * 2;
    let half = |plane: usize| {
        let unit = within / UNIT * kind.planes + plane;
        let at = ((unit * 4 + within % UNIT / 16) * 32 + lane) * 16 + within_lane;
        f16::from_le_bytes([record[at], record[at + 1]]).to_f32()
    };
    (0..kind.planes).map(half).sum::<f32>() * p.row_scales[row]
}

#[test]
fn packed_floats_are_the_floats() {
    // Powers of two and halves of them, over a wide range.
    let value = |i: usize| {
        let sign = if i.is_multiple_of(3) { -1.0 } else { 1.0 };
        sign * (1.0 + (i % 8) as f32 / 8.0) * 2f32.powi((i * 7 % 25) as i32 - 12)
    };
    let (n, k) = (19, 150);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let kind = Kind::of(dtype).unwrap();
        let bytes = |first: usize| -> Vec<u8> {
            let values = (first..first + n * k).map(value);
            match dtype {
                DType::F32 => values.flat_map(|v| v.to_le_bytes()).collect(),
                DType::BF16 => values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
                _ => values.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
            }
        };
        let (a, b) = (bytes(0), bytes(1000));
        let parts = [Rows { dtype, n, bytes: &a }, Rows { dtype, n, bytes: &b }];
        for paired in [false, true] {
            let packed = pack(kind, k, &parts, paired, 2);
            assert_eq!(packed.tiles, 4);
            for (part, first) in [(0, 0), (1, 1000)] {
                for i in 0..n * k {
                    let (row, column) = (i / k, i % k);
                    let tile = match paired {
                        false => part * 2 + row / TILE,
                        true => row / TILE * 2 + part,
                    };
                    let got = float_element(kind, &packed, tile * TILE + row % TILE, column);
                    assert_eq!(got, value(first + i), "{dtype} {row} {column} {paired}");
                }
            }
        }
    }
}
