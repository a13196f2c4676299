use super::*;
use crate::Class;

static DECODE: &[u8] = include_bytes!("../../../../golden/quant/decode.bin");
static ENCODE: &[u8] = include_bytes!("../../../../golden/quant/encode.bin");
static CRC: &str = include_str!("../../../../golden/quant/crc.txt");

/// Dtype, input and output of every record of a golden file.
fn records(mut file: &'static [u8]) -> Vec<(DType, &'static [u8], &'static [u8])> {
    let mut part = move || {
        let (len, rest) = file.split_first_chunk().filter(|_| !file.is_empty())?;
        let (part, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        file = rest;
        Some(part)
    };
    let mut all = Vec::new();
    while let Some(name) = part() {
        let dtype = std::str::from_utf8(name).unwrap().parse().unwrap();
        all.push((dtype, part().unwrap(), part().unwrap()));
    }
    all
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

fn decoded(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let layout = dtype.layout();
    let mut out = vec![0.0; bytes.len() / layout.bytes * layout.block];
    decode(dtype, bytes, &mut out).unwrap();
    out
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(dtype, values, &mut out).unwrap();
    out
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(n + 8);
        while bytes.len() < n {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(n);
        bytes
    }

    /// Nearly normal: the sum of twelve uniform numbers, centered.
    fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits >> 40) as f32 / (1 << 24) as f32;
        (0..12).map(|_| uniform(self.next())).sum::<f32>() - 6.0
    }
}

fn crc32(words: &[u32]) -> u32 {
    let table: Vec<u32> = (0..256)
        .map(|i| (0..8).fold(i, |c: u32, _| if c & 1 == 1 { c >> 1 ^ 0xEDB8_8320 } else { c >> 1 }))
        .collect();
    let bytes = words.iter().flat_map(|w| w.to_le_bytes());
    !bytes.fold(!0, |crc: u32, b| crc >> 8 ^ table[(crc as u8 ^ b) as usize])
}

fn quantized() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|d| d.is_quantized())
}

#[test]
fn the_table_has_every_format_in_its_place() {
    assert_eq!(FORMATS.len(), quantized().count());
    for dtype in quantized() {
        assert_eq!(format(dtype).map(|f| f.dtype), Some(dtype));
        assert!([16, 32].contains(&group_size(dtype)));
    }
    assert_eq!(group_size(DType::F16), 1);
    assert!(format(DType::F64).is_none());
}

#[test]
fn decoding_explicit_blocks_equals_the_reference() {
    let records = records(DECODE);
    assert_eq!(records.len(), 27);
    for (dtype, bytes, expected) in records {
        let (got, want) = (bits(&decoded(dtype, bytes)), bits(&floats(expected)));
        assert_eq!(got.len(), want.len(), "{dtype}");
        if let Some(i) = (0..got.len()).find(|&i| got[i] != want[i]) {
            panic!("{dtype} element {i}: {:08x}, not {:08x}", got[i], want[i]);
        }
    }
}

#[test]
fn decoding_generated_blocks_equals_the_reference() {
    let mut seen = 0;
    for line in CRC.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let dtype: DType = fields[0].parse().unwrap();
        let mut rng = SplitMix(fields[1].parse().unwrap());
        let values = decoded(dtype, &rng.bytes(512 * dtype.layout().bytes));
        assert_eq!(format!("{:08x}", crc32(&bits(&values))), fields[2], "{dtype}");
        seen += 1;
    }
    assert_eq!(seen, 25);
}

#[test]
fn activation_formats_are_scale_times_byte() {
    let mut q8_1 = [0u8; 36];
    q8_1[..2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
    q8_1[4..7].copy_from_slice(&[1, 255, 128]);
    assert_eq!(decoded(DType::Q8_1, &q8_1)[..4], [0.5, -0.5, -64.0, 0.0]);

    let mut q8_k = [0u8; 292];
    q8_k[..4].copy_from_slice(&0.1f32.to_le_bytes());
    q8_k[4..6].copy_from_slice(&[3, 253]);
    q8_k[259] = 127;
    let x = decoded(DType::Q8_K, &q8_k);
    assert_eq!((x[0], x[1], x[255]), (0.1 * 3.0, 0.1 * -3.0, 0.1 * 127.0));
}

#[test]
fn low_bit_formats_take_the_lowest_bits_first() {
    let half = |x| half::f16::from_f32(x).to_le_bytes();
    let mut q1_0 = [0u8; 18];
    q1_0[..2].copy_from_slice(&half(0.5));
    (q1_0[2], q1_0[17]) = (0b101, 0x80);
    let x = decoded(DType::Q1_0, &q1_0);
    assert_eq!((&x[..4], x[126], x[127]), (&[0.5, -0.5, 0.5, -0.5][..], -0.5, 0.5));

    let mut q2_0 = [0u8; 18];
    q2_0[..2].copy_from_slice(&half(0.5));
    (q2_0[2], q2_0[17]) = (0b11_10_01_00, 0x80);
    let x = decoded(DType::Q2_0, &q2_0);
    assert_eq!((&x[..4], x[62], x[63]), (&[-0.5, 0.0, 0.5, 1.0][..], -0.5, 0.5));
}

#[test]
fn plain_floats_decode() {
    let wide = [1.5f64, 1e300, -0.1].map(f64::to_le_bytes).concat();
    assert_eq!(decoded(DType::F64, &wide), [1.5, f32::INFINITY, -0.1]);
    let same = [f32::NAN, -0.0, f32::MIN_POSITIVE / 2.0];
    assert_eq!(bits(&decoded(DType::F32, &encoded(DType::F32, &same))), bits(&same));
}

#[test]
fn codes_reproduce_decoding() {
    let mut rng = SplitMix(3);
    // What a previous block left behind must not show.
    let mut c = Codes { offsets: [7.0; 16], ..Codes::new() };
    for dtype in quantized() {
        let layout = dtype.layout();
        for _ in 0..64 {
            let block = rng.bytes(layout.bytes);
            codes(dtype, &block, &mut c).unwrap();
            let values = decoded(dtype, &block);
            for (i, want) in values.into_iter().enumerate() {
                let g = i / group_size(dtype);
                let got = c.scales[g] * f32::from(c.codes[i]) + c.offsets[g];
                assert!(got == want || got.is_nan() && want.is_nan(), "{dtype} {i}");
            }
            if !has_offsets(dtype) {
                assert_eq!(c.offsets, [0.0; 16]);
            }
        }
    }
}

#[test]
fn encoding_equals_the_reference() {
    let records = records(ENCODE);
    assert_eq!(records.len(), 8);
    for (dtype, values, expected) in records {
        let got = encoded(dtype, &floats(values));
        let size = dtype.layout().bytes;
        for (i, (got, want)) in got.chunks(size).zip(expected.chunks(size)).enumerate() {
            assert_eq!(got, want, "{dtype} block {i}");
        }
        assert_eq!(got.len(), expected.len());
    }
}

/// Root mean square of the error over that of the values.
fn relative_error(dtype: DType, values: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let back = decoded(dtype, &encoded(dtype, values));
    let error: f64 = back.iter().zip(values).map(|(a, b)| square(a - b)).sum();
    (error / values.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

#[test]
fn k_encoders_are_accurate_at_every_size() {
    let mut rng = SplitMix(11);
    let normal: Vec<f32> = (0..256 * 64).map(|_| rng.normal()).collect();
    // Bounds: what llama.cpp's own encoder reaches on normal values, rounded up.
    for (dtype, bound) in K_BOUNDS {
        for size in [1.0, 0.02, 3e4] {
            let values: Vec<f32> = normal.iter().map(|x| x * size).collect();
            let error = relative_error(dtype, &values);
            assert!(error < bound, "{dtype} at {size}: {error}");
        }
    }
}

#[test]
fn k_encoders_keep_what_the_format_can_say() {
    for (dtype, _) in K_BOUNDS {
        assert_eq!(decoded(dtype, &encoded(dtype, &[0.0; 256])), [0.0; 256]);
        // Codes times a power of two fit exactly.
        let ramp: Vec<f32> = (0..256).map(|i| (i % 16) as f32 * 0.25 - 2.0).collect();
        assert!(relative_error(dtype, &ramp) < 0.01, "{dtype}");
        // One sign only, a constant, a single spike: the degenerate fits.
        let positive: Vec<f32> = (0..256).map(|i| 5.0 + (i % 7) as f32 * 0.1).collect();
        assert!(relative_error(dtype, &positive) < 0.05, "{dtype}");
        for constant in [0.75, -0.75] {
            assert!(relative_error(dtype, &[constant; 256]) < 0.02, "{dtype} {constant}");
        }
        let mut spike = [0.0; 256];
        spike[100] = -9.0;
        assert!(relative_error(dtype, &spike) < 0.02, "{dtype}");
        // Below the smallest f16 scale everything is zero, never NaN.
        for tiny in [1e-12, 1e-38, 1e-45] {
            let back = decoded(dtype, &encoded(dtype, &[tiny; 256]));
            assert!(back.iter().all(|x| x.abs() < 1e-6), "{dtype} {tiny}");
        }
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_errors() {
    let mut out = vec![1];
    let error = encode(DType::Q4_K, &[0.0; 896], &mut out).unwrap_err();
    assert_eq!(error, QuantError::PartialBlock { dtype: DType::Q4_K, elems: 896, block: 256 });
    let text = error.to_string();
    assert!(text.contains("896") && text.contains("256"), "{text}");
    let error = decode(DType::Q8_0, &[0; 34], &mut [0.0; 33]).unwrap_err();
    assert_eq!(error, QuantError::PartialBlock { dtype: DType::Q8_0, elems: 33, block: 32 });

    for dtype in quantized() {
        let layout = dtype.layout();
        for len in [0, layout.bytes - 1, layout.bytes + 1, 2 * layout.bytes] {
            let bytes = vec![0; len];
            let wrong = decode(dtype, &bytes, &mut vec![0.0; layout.block]);
            assert!(matches!(wrong, Err(QuantError::Length { got, .. }) if got == len));
            let wrong = codes(dtype, &bytes, &mut Codes::new());
            assert!(matches!(wrong, Err(QuantError::Length { got, .. }) if got == len));
        }
        decode(dtype, &[], &mut []).unwrap();
    }
    assert_eq!(out, [1]);
}

#[test]
fn values_that_do_not_fit_are_errors_and_leave_no_bytes() {
    for dtype in quantized().filter(|&d| can_encode(d)) {
        let n = 2 * dtype.layout().block;
        let mut out = vec![9];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; n];
            values[n - 1] = bad;
            let error = encode(dtype, &values, &mut out).unwrap_err();
            assert!(matches!(error, QuantError::NotFinite { idx, .. } if idx == n - 1));
        }
        let mut values: Vec<f32> = (0..n).map(|i| i as f32).collect();
        values[n - 1] = 3e38;
        let error = encode(dtype, &values, &mut out).unwrap_err();
        assert!(
            matches!(error, QuantError::TooLarge { first, end, .. }
            if first == n / 2 && end == n),
            "{dtype}: {error}"
        );
        assert_eq!(out, [9]);
        // Past f16 but with a scale inside it.
        let large: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { 65000.0 } else { -3.0 }).collect();
        assert!(decoded(dtype, &encoded(dtype, &large)).iter().all(|x| x.is_finite()), "{dtype}");
    }
    let halves = [1e6, f32::NAN, -1e6];
    let back = decoded(DType::F16, &encoded(DType::F16, &halves));
    assert!(back[0] == f32::INFINITY && back[1].is_nan() && back[2] == f32::NEG_INFINITY);
}

#[test]
fn dtypes_without_a_codec_are_errors() {
    for &dtype in DType::ALL {
        let layout = dtype.layout();
        let bytes = vec![0; layout.bytes];
        let decodes = decode(dtype, &bytes, &mut vec![0.0; layout.block]).is_ok();
        assert_eq!(decodes, matches!(dtype.class(), Class::Float | Class::Quantized), "{dtype}");
        let encodes = encode(dtype, &vec![0.0; layout.block], &mut Vec::new()).is_ok();
        assert_eq!(encodes, can_encode(dtype), "{dtype}");
        assert_eq!(codes(dtype, &bytes, &mut Codes::new()).is_ok(), dtype.is_quantized());
    }
    let text = QuantError::NoEncoder { dtype: DType::IQ1_S }.to_string();
    assert!(text.contains("q4_k") && !text.contains("iq2"), "{text}");
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(which in 0..DType::ALL.len(), bytes: Vec<u8>, elems in 0usize..600) {
        let dtype = DType::ALL[which];
        let _ = decode(dtype, &bytes, &mut vec![0.0; elems]);
        let _ = codes(dtype, &bytes, &mut Codes::new());
        // The same bytes, repeated to whole blocks.
        let layout = dtype.layout();
        let blocks: Vec<u8> = bytes.iter().copied().cycle().take(2 * layout.bytes).collect();
        if !bytes.is_empty() {
            let _ = decode(dtype, &blocks, &mut vec![0.0; 2 * layout.block]);
            let _ = codes(dtype, &blocks[..layout.bytes], &mut Codes::new());
        }
    }

    #[test]
    fn no_values_panic(seed: u64, exponent in -46i32..39) {
        let mut rng = SplitMix(seed);
        let size = 10f32.powi(exponent);
        let values: Vec<f32> = (0..256).map(|_| rng.normal() * size).collect();
        for &dtype in DType::ALL.iter().filter(|&&d| can_encode(d)) {
            let mut out = Vec::new();
            let Ok(()) = encode(dtype, &values, &mut out) else { continue };
            let limit = values.iter().fold(0.0f32, |m, x| m.max(x.abs())) * 1.2 + 1e-4;
            let fits = |x: &f32| x.abs() <= limit || dtype == DType::F16;
            proptest::prop_assert!(decoded(dtype, &out).iter().all(fits), "{dtype}");
        }
    }
}

/// Relative error that encoding normal values must stay below.
const K_BOUNDS: [(DType, f64); 3] =
    [(DType::Q4_K, 0.0715), (DType::Q5_K, 0.0362), (DType::Q6_K, 0.0178)];
