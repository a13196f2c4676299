//! Every atom and kind, on values worked out by hand or by plain loops.

mod graphs;

use bytemuck::NoUninit;
use cyb_ir::{Atom, Cmp, Exp, Float, Op, Read, Reduce, Scatter, Slide, Write};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Tensor};
use half::{bf16, f16};

use crate::{InterpError, evaluate_node};

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

fn tensor<T: NoUninit>(dtype: DType, shape: &[usize], elems: &[T]) -> Tensor {
    Tensor::from_elems(dtype, shape.to_vec(), elems).unwrap()
}

fn f32s(shape: &[usize], elems: &[f32]) -> Tensor {
    tensor(DType::F32, shape, elems)
}

fn i64s(elems: &[i64]) -> Tensor {
    tensor(DType::I64, &[elems.len()], elems)
}

fn try_one(atom: Atom, inputs: &[&Tensor]) -> Result<Tensor, InterpError> {
    let inputs: Vec<Tensor> = inputs.iter().map(|&t| t.clone()).collect();
    let mut outputs = evaluate_node(&Op::Atom(atom), &inputs, &Bindings::new())?;
    assert_eq!(outputs.len(), 1);
    Ok(outputs.remove(0))
}

fn one(atom: Atom, inputs: &[&Tensor]) -> Tensor {
    try_one(atom, inputs).unwrap()
}

/// Equal bits, except that every NaN is the same.
fn assert_f32(got: &Tensor, want: &[f32]) {
    let bits = |v: &[f32]| v.iter().map(|x| if x.is_nan() { 0 } else { !x.to_bits() }).collect();
    let (got, want): (Vec<u32>, Vec<u32>) = (bits(&got.to_f32_vec().unwrap()), bits(want));
    assert_eq!(got, want, "bits inverted, NaN is 0");
}

fn ints<T: bytemuck::AnyBitPattern>(t: &Tensor) -> Vec<T> {
    t.to_vec(t.dtype()).unwrap()
}

fn reduced(kind: Reduce, axes: &[usize]) -> Atom {
    Atom::Reduce { kind, axes: axes.to_vec() }
}

fn slice(axis: usize, start: usize, len: usize, step: i64) -> Atom {
    Atom::Read(Read::Slice { axis, start: start.into(), len: len.into(), step })
}

fn reshape(shape: &[usize]) -> Atom {
    Atom::Read(Read::Reshape(shape.iter().map(|&n| n.into()).collect()))
}

fn cast(to: DType) -> Atom {
    Atom::Read(Read::Cast(to))
}

#[test]
fn mul_and_add_broadcast_and_round_once() {
    let a = f32s(&[2, 1], &[1.5, INF]);
    let b = f32s(&[3], &[2.0, -0.0, NAN]);
    assert_f32(&one(Atom::Mul, &[&a, &b]), &[3.0, -0.0, NAN, INF, NAN, NAN]);
    assert_f32(&one(Atom::Add, &[&a, &b]), &[3.5, 1.5, NAN, INF, INF, NAN]);
    let scalar = f32s(&[], &[2.0]);
    let four = one(Atom::Add, &[&scalar, &scalar]);
    assert_eq!((four.shape(), four.to_f32_vec().unwrap()), (&[][..], vec![4.0]));
    assert_f32(&one(Atom::Mul, &[&f32s(&[1], &[3e38]), &scalar]), &[INF]);
    // 1 + 2^-24 is a tie between 1 and its successor, and goes to the even 1.
    let tie = f32s(&[2], &[f32::EPSILON / 2.0, f32::EPSILON * 0.75]);
    assert_f32(&one(Atom::Add, &[&f32s(&[], &[1.0]), &tie]), &[1.0, 1.0 + f32::EPSILON]);
    assert_eq!(one(Atom::Mul, &[&f32s(&[0, 3], &[]), &b]).shape(), [0, 3]);
}

#[test]
fn narrow_floats_match_single_rounding_of_f32_arithmetic() {
    let values = [1.0, 1.0009766, -3.3333, 6e-8, 65504.0, 0.1, 1e-5, 2049.0, 3e-6, -0.0];
    for a in values.map(f16::from_f32) {
        for b in values.map(f16::from_f32) {
            let t = |x: f16| tensor(DType::F16, &[1], &[x.to_bits()]);
            let sum: u16 = ints(&one(Atom::Add, &[&t(a), &t(b)]))[0];
            let product: u16 = ints(&one(Atom::Mul, &[&t(a), &t(b)]))[0];
            assert_eq!(sum, f16::from_f32(a.to_f32() + b.to_f32()).to_bits());
            assert_eq!(product, f16::from_f32(a.to_f32() * b.to_f32()).to_bits());
        }
    }
    let t = |x: f32| tensor(DType::BF16, &[1], &[bf16::from_f32(x).to_bits()]);
    let product: u16 = ints(&one(Atom::Mul, &[&t(1.5), &t(3.1)]))[0];
    let want = bf16::from_f32(1.5 * bf16::from_f32(3.1).to_f32());
    assert_eq!(product, want.to_bits());
}

#[test]
fn every_eight_bit_float_survives_a_round_trip() {
    let all: Vec<u8> = (0..=255).collect();
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let x = tensor(dtype, &[256], &all);
        let wide = one(cast(DType::F32), &[&x]);
        let back = ints::<u8>(&one(Atom::Write(Write::Encode(dtype)), &[&wide]));
        for (bits, back) in all.iter().zip(back) {
            let value = wide.to_f32_vec().unwrap()[usize::from(*bits)];
            assert!(back == *bits || value.is_nan(), "{dtype} {bits:#x} is {value}: {back:#x}");
        }
    }
    let x = tensor(DType::F8E4M3, &[6], &[0x38u8, 0x7e, 0x01, 0xc4, 0x08, 0xff]);
    assert_f32(&one(cast(DType::F32), &[&x]), &[1.0, 448.0, 0.001953125, -3.0, 0.015625, NAN]);
    let over = f32s(&[3], &[464.0, 465.0, -INF]);
    let e4m3 = one(cast(DType::F32), &[&one(cast(DType::F8E4M3), &[&over])]);
    assert_f32(&e4m3, &[448.0, NAN, NAN]);
    let e5m2 =
        one(cast(DType::F32), &[&one(cast(DType::F8E5M2), &[&f32s(&[2], &[61440.0, 57344.0])])]);
    assert_f32(&e5m2, &[INF, 57344.0]);
}

#[test]
fn integers_wrap_and_bools_are_logic() {
    let a = tensor(DType::U8, &[2], &[200u8, 16]);
    assert_eq!(ints::<u8>(&one(Atom::Add, &[&a, &a])), [144, 32]);
    assert_eq!(ints::<u8>(&one(Atom::Mul, &[&a, &a])), [64, 0]);
    let a = i64s(&[i64::MAX, 3]);
    assert_eq!(ints::<i64>(&one(Atom::Add, &[&a, &a])), [-2, 6]);
    let (p, q) =
        (tensor(DType::Bool, &[4], &[0u8, 0, 1, 1]), tensor(DType::Bool, &[4], &[0u8, 1, 0, 1]));
    assert_eq!(ints::<u8>(&one(Atom::Mul, &[&p, &q])), [0, 0, 0, 1]);
    assert_eq!(ints::<u8>(&one(Atom::Add, &[&p, &q])), [0, 1, 1, 1]);
}

#[test]
fn comparisons_follow_ieee() {
    let a = f32s(&[6], &[1.0, NAN, 0.0, -0.0, -INF, 2.0]);
    let b = f32s(&[6], &[2.0, 1.0, -0.0, 0.0, INF, 2.0]);
    assert_f32(&one(Atom::Cmp(Cmp::Max), &[&a, &b]), &[2.0, NAN, 0.0, 0.0, INF, 2.0]);
    assert_f32(&one(Atom::Cmp(Cmp::Min), &[&a, &b]), &[1.0, NAN, -0.0, -0.0, -INF, 2.0]);
    assert_f32(&one(Atom::Cmp(Cmp::Max), &[&b, &a]), &[2.0, NAN, 0.0, 0.0, INF, 2.0]);
    assert_eq!(ints::<u8>(&one(Atom::Cmp(Cmp::Lt), &[&a, &b])), [1, 0, 0, 0, 1, 0]);
    assert_eq!(ints::<u8>(&one(Atom::Cmp(Cmp::Eq), &[&a, &b])), [0, 0, 1, 1, 0, 1]);
    let big = tensor(DType::U64, &[2], &[u64::MAX, 1]);
    let one_ = tensor(DType::U64, &[], &[1u64]);
    assert_eq!(ints::<u64>(&one(Atom::Cmp(Cmp::Max), &[&big, &one_])), [u64::MAX, 1]);
    assert_eq!(ints::<u64>(&one(Atom::Cmp(Cmp::Min), &[&big, &one_])), [1, 1]);
    assert_eq!(ints::<u8>(&one(Atom::Cmp(Cmp::Lt), &[&one_, &big])), [1, 0]);
    let c = tensor(DType::Bool, &[2, 1], &[1u8, 0]);
    let chosen = one(Atom::Cmp(Cmp::Select), &[&c, &f32s(&[], &[NAN]), &f32s(&[2], &[1.0, 2.0])]);
    assert_f32(&chosen, &[NAN, NAN, 1.0, 2.0]);
    let chosen = one(Atom::Cmp(Cmp::Select), &[&c, &i64s(&[5]), &i64s(&[6])]);
    assert_eq!(ints::<i64>(&chosen), [5, 6]);
}

#[test]
fn transcendental_functions_are_nearest_f32() {
    let exp = |kind, x: &[f32]| one(Atom::Exp(kind), &[&f32s(&[x.len()], x)]);
    assert_f32(
        &exp(Exp::Exp, &[0.0, 1.0, -INF, 89.0, NAN]),
        &[1.0, std::f32::consts::E, 0.0, INF, NAN],
    );
    assert_f32(&exp(Exp::Ln, &[1.0, 0.0, -1.0, INF]), &[0.0, -INF, NAN, INF]);
    assert_f32(&exp(Exp::Sqrt, &[2.0, -0.0, -1.0]), &[std::f32::consts::SQRT_2, -0.0, NAN]);
    assert_f32(&exp(Exp::Rsqrt, &[4.0, 0.0, -0.0, INF, -1.0]), &[0.5, INF, -INF, 0.0, NAN]);
    assert_f32(&exp(Exp::Recip, &[3.0, 0.0, -0.0, INF]), &[1.0 / 3.0, INF, -INF, 0.0]);
    assert_f32(&exp(Exp::Sin, &[0.0, 1.0, INF, 1e10]), &[0.0, 0.841_470_96, NAN, -0.487_506_03]);
    assert_f32(&exp(Exp::Cos, &[0.0, 1.0, -INF]), &[1.0, 0.540_302_3, NAN]);
    assert_f32(&exp(Exp::Erf, &[0.0, 0.5, -INF, INF, NAN]), &[0.0, 0.520_499_9, -1.0, 1.0, NAN]);
    assert_f32(&exp(Exp::Floor, &[-0.5, 1.5, -0.0, INF, 1e20]), &[-1.0, 1.0, -0.0, INF, 1e20]);
    let half = tensor(DType::F16, &[1], &[f16::from_f32(11.0).to_bits()]);
    let e = f16::from_bits(ints::<u16>(&one(Atom::Exp(Exp::Exp), &[&half]))[0]);
    assert_eq!(e, f16::from_f32(59874.14));
}

#[test]
fn views_move_no_value() {
    let x = f32s(&[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let t = one(Atom::Read(Read::Permute(vec![1, 0])), &[&x]);
    assert_eq!(t.shape(), [3, 2]);
    assert_f32(&t, &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    assert_f32(&one(slice(1, 2, 3, -1), &[&x]), &[2.0, 1.0, 0.0, 5.0, 4.0, 3.0]);
    assert_f32(&one(slice(1, 0, 2, 2), &[&x]), &[0.0, 2.0, 3.0, 5.0]);
    assert_eq!(one(slice(1, 3, 0, 1), &[&x]).shape(), [2, 0]);
    let wide = Atom::Read(Read::Broadcast(vec![2.into(), 2.into(), 3.into()]));
    assert_f32(
        &one(wide, &[&f32s(&[2, 1], &[7.0, 8.0])]),
        &[7., 7., 7., 8., 8., 8., 7., 7., 7., 8., 8., 8.],
    );
    assert_f32(&one(reshape(&[3, 2]), &[&x]), &x.to_f32_vec().unwrap());
    assert_f32(&one(reshape(&[]), &[&f32s(&[1, 1], &[9.0])]), &[9.0]);
    // The payload of a NaN is part of what a view keeps.
    let payload = tensor(DType::F32, &[2], &[0x7fa0_1234u32, 1]);
    assert_eq!(
        one(slice(0, 1, 2, -1), &[&payload]).to_vec::<u32>(DType::F32).unwrap(),
        [1, 0x7fa0_1234]
    );
    for (start, len, step) in [(0, 4, 1), (3, 1, 1), (1, 3, -1), (2, 2, i64::MAX), (0, 2, i64::MIN)]
    {
        let error = try_one(slice(1, start, len, step), &[&x]).unwrap_err().to_string();
        assert!(error.contains("leave 0..3, axis 1"), "{error}");
    }
}

#[test]
fn pad_and_concat_join_along_an_axis() {
    let x = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let pad = |axis, before: usize, after: usize, value| {
        Atom::Read(Read::Pad {
            axis,
            before: before.into(),
            after: after.into(),
            value: Float::new(value),
        })
    };
    assert_f32(
        &one(pad(1, 1, 2, -INF as f64), &[&x]),
        &[-INF, 1., 2., -INF, -INF, -INF, 3., 4., -INF, -INF],
    );
    assert_f32(&one(pad(0, 1, 0, 0.1), &[&x]), &[0.1, 0.1, 1.0, 2.0, 3.0, 4.0]);
    let bytes = tensor(DType::U8, &[1], &[1u8]);
    assert_eq!(ints::<u8>(&one(pad(0, 1, 1, 300.0), &[&bytes])), [255, 1, 255]);
    let y = f32s(&[2, 1], &[8.0, 9.0]);
    let empty = f32s(&[2, 0], &[]);
    let joined = one(Atom::Write(Write::Concat { axis: 1 }), &[&x, &empty, &y]);
    assert_f32(&joined, &[1.0, 2.0, 8.0, 3.0, 4.0, 9.0]);
}

#[test]
fn gather_and_scatter_check_every_index() {
    let x = f32s(&[3, 2], &[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]);
    let index = tensor(DType::I32, &[2, 2], &[2i32, 0, 2, 1]);
    let rows = one(Atom::Read(Read::Gather { axis: 0 }), &[&x, &index]);
    assert_eq!(rows.shape(), [2, 2, 2]);
    assert_f32(&rows, &[20., 21., 0., 1., 20., 21., 10., 11.]);
    let columns = one(Atom::Read(Read::Gather { axis: 1 }), &[&x, &i64s(&[1])]);
    assert_f32(&columns, &[1.0, 11.0, 21.0]);
    for (bad, message) in
        [(-1, "index -1 is outside 0..3, axis 0"), (3, "index 3 is outside 0..3, axis 0")]
    {
        let error = try_one(Atom::Read(Read::Gather { axis: 0 }), &[&x, &i64s(&[0, bad])]);
        assert!(error.unwrap_err().to_string().ends_with(message));
    }
    let huge = tensor(DType::U64, &[1], &[u64::MAX]);
    let error = try_one(Atom::Read(Read::Gather { axis: 0 }), &[&x, &huge]).unwrap_err();
    assert!(error.to_string().contains("18446744073709551615"));

    let scatter = |mode, index: &[i64], updates: &[f32]| {
        let updates = f32s(&[index.len(), 2], updates);
        try_one(Atom::Write(Write::Scatter { axis: 0, mode }), &[&x, &i64s(index), &updates])
    };
    let up = [1.0, 2.0, 3.0, 4.0];
    assert_f32(&scatter(Scatter::Set, &[1, 1], &up).unwrap(), &[0., 1., 3., 4., 20., 21.]);
    assert_f32(&scatter(Scatter::Add, &[1, 1], &up).unwrap(), &[0., 1., 14., 17., 20., 21.]);
    assert_f32(&scatter(Scatter::Mul, &[2, 0], &up).unwrap(), &[0., 4., 10., 11., 20., 42.]);
    assert_f32(&scatter(Scatter::Max, &[0, 2], &up).unwrap(), &[1., 2., 10., 11., 20., 21.]);
    assert_f32(&scatter(Scatter::Min, &[0, 2], &up).unwrap(), &[0., 1., 10., 11., 3., 4.]);
    assert!(scatter(Scatter::Set, &[0, -1], &up).is_err());
    assert_f32(&scatter(Scatter::Set, &[], &[]).unwrap(), &x.to_f32_vec().unwrap());
    // Each addition rounds: 2^24 + 1 is 2^24, twice over.
    let base = f32s(&[1], &[16_777_216.0]);
    let ones = f32s(&[2], &[1.0, 1.0]);
    let atom = Atom::Write(Write::Scatter { axis: 0, mode: Scatter::Add });
    assert_f32(&one(atom, &[&base, &i64s(&[0, 0]), &ones]), &[16_777_216.0]);
    let atom = Atom::Write(Write::Scatter { axis: 1, mode: Scatter::Add });
    let base = tensor(DType::I8, &[2, 2], &[100i8, 0, 0, 0]);
    let updates = tensor(DType::I8, &[2, 1], &[100i8, 7]);
    assert_eq!(ints::<i8>(&one(atom, &[&base, &i64s(&[0]), &updates])), [-56, 0, 7, 0]);
}

#[test]
fn casts_saturate_wrap_and_round() {
    let x = f32s(&[6], &[1.9, -1.9, NAN, INF, -INF, 300.0]);
    assert_eq!(ints::<u8>(&one(cast(DType::U8), &[&x])), [1, 0, 0, 255, 0, 255]);
    assert_eq!(ints::<i32>(&one(cast(DType::I32), &[&x])), [1, -1, 0, i32::MAX, i32::MIN, 300]);
    assert_eq!(ints::<u64>(&one(cast(DType::U64), &[&x])), [1, 0, 0, u64::MAX, 0, 300]);
    assert_eq!(
        ints::<u8>(&one(cast(DType::Bool), &[&f32s(&[4], &[0.0, -0.0, NAN, 0.1])])),
        [0, 0, 1, 1]
    );
    assert_eq!(ints::<i8>(&one(cast(DType::I8), &[&i64s(&[300, -129, 127])])), [44, 127, 127]);
    assert_eq!(ints::<u64>(&one(cast(DType::U64), &[&i64s(&[-1])])), [u64::MAX]);
    assert_eq!(ints::<u8>(&one(cast(DType::Bool), &[&i64s(&[256, 0])])), [1, 0]);
    // 2^54 + 2^30 + 1 lies above a tie that rounding to f64 first would hit exactly.
    let n = (1i64 << 54) + (1 << 30) + 1;
    assert_f32(&one(cast(DType::F32), &[&i64s(&[n, i64::MIN])]), &[n as f32, i64::MIN as f32]);
    let max = tensor(DType::U64, &[1], &[u64::MAX]);
    assert_f32(&one(cast(DType::F32), &[&max]), &[u64::MAX as f32]);
    // In bf16 the quantum at 2^62 is 2^55, and 2^54 + 1 is just above half of it.
    let n = (1i64 << 62) + (1 << 54) + 1;
    let b: u16 = ints(&one(cast(DType::BF16), &[&i64s(&[n])]))[0];
    assert_eq!(bf16::from_bits(b).to_f64(), (1u64 << 62) as f64 + (1u64 << 55) as f64);
    // The same from a double whose low bits are all that is above the tie.
    let d = tensor(DType::F64, &[1], &[1.0 + 2f64.powi(-8) + 2f64.powi(-40)]);
    let b: u16 = ints(&one(cast(DType::BF16), &[&d]))[0];
    assert_eq!(bf16::from_bits(b).to_f32(), 1.0078125);
    let h = one(cast(DType::F16), &[&f32s(&[4], &[65519.0, 65520.0, 1e-8, 3.0e-8])]);
    assert_eq!(ints::<u16>(&h), [0x7bff, 0x7c00, 0, 1]);
}

#[test]
fn reductions_accumulate_in_order_and_round_once() {
    // In f32 the small terms would vanish one by one.
    let x = f32s(&[4], &[16_777_216.0, 1.0, 1.0, 1.0]);
    assert_f32(&one(reduced(Reduce::Sum, &[0]), &[&x]), &[16_777_220.0]);
    let x = f32s(&[2, 3, 2], &(0..12).map(|i| i as f32).collect::<Vec<_>>());
    assert_f32(&one(reduced(Reduce::Sum, &[1]), &[&x]), &[6., 9., 24., 27.]);
    assert_f32(&one(reduced(Reduce::Sum, &[0, 2]), &[&x]), &[14., 22., 30.]);
    assert_f32(&one(reduced(Reduce::Sum, &[]), &[&x]), &x.to_f32_vec().unwrap());
    assert_f32(&one(reduced(Reduce::Max, &[0, 1, 2]), &[&x]), &[11.0]);
    assert_f32(&one(reduced(Reduce::Min, &[2]), &[&x]), &[0., 2., 4., 6., 8., 10.]);
    assert_f32(&one(reduced(Reduce::Prod, &[1]), &[&f32s(&[1, 3], &[2.0, -3.0, 0.5])]), &[-3.0]);
    let odd = f32s(&[2, 2], &[NAN, 1.0, -0.0, 0.0]);
    assert_f32(&one(reduced(Reduce::Max, &[1]), &[&odd]), &[NAN, 0.0]);
    assert_f32(&one(reduced(Reduce::Min, &[1]), &[&odd]), &[NAN, -0.0]);
    assert_f32(&one(reduced(Reduce::Sum, &[0]), &[&f32s(&[2], &[INF, -INF])]), &[NAN]);
    // The order is that of the reduced axes: 1e300 and -1e300 cancel before 1 is added.
    let x = tensor(DType::F64, &[3], &[1e300, -1e300, 1.0]);
    assert_eq!(ints::<f64>(&one(reduced(Reduce::Sum, &[0]), &[&x])), [1.0]);
    let bytes = tensor(DType::U8, &[3], &[200u8, 100, 3]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Sum, &[0]), &[&bytes])), [47]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Prod, &[0]), &[&bytes])), [96]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Max, &[0]), &[&bytes])), [200]);
    let truth = tensor(DType::Bool, &[2, 2], &[0u8, 1, 1, 1]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Sum, &[1]), &[&truth])), [1, 1]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Prod, &[1]), &[&truth])), [0, 1]);
    assert_eq!(ints::<u8>(&one(reduced(Reduce::Max, &[1]), &[&truth])), [1, 1]);
}

#[test]
fn empty_reductions_give_the_identity() {
    let x = f32s(&[2, 0], &[]);
    for (kind, want) in
        [(Reduce::Sum, 0.0), (Reduce::Prod, 1.0), (Reduce::Max, -INF), (Reduce::Min, INF)]
    {
        assert_f32(&one(reduced(kind, &[1]), &[&x]), &[want, want]);
        assert_eq!(one(reduced(kind, &[0]), &[&x]).shape(), [0]);
    }
    let none: [i64; 0] = [];
    for (kind, want) in [(Reduce::Max, i64::MIN), (Reduce::Min, i64::MAX)] {
        assert_eq!(ints::<i64>(&one(reduced(kind, &[0]), &[&i64s(&none)])), [want]);
    }
    let unsigned = tensor::<u64>(DType::U64, &[0], &[]);
    assert_eq!(ints::<u64>(&one(reduced(Reduce::Min, &[0]), &[&unsigned])), [u64::MAX]);
    let truth = tensor::<u8>(DType::Bool, &[0], &[]);
    for (kind, want) in [(Reduce::Sum, 0), (Reduce::Prod, 1), (Reduce::Max, 0), (Reduce::Min, 1)] {
        assert_eq!(ints::<u8>(&one(reduced(kind, &[0]), &[&truth])), [want]);
    }
    assert!(matches!(
        try_one(reduced(Reduce::Argmax, &[1]), &[&x]),
        Err(InterpError::Node { error, .. }) if *error == InterpError::EmptyArg { axis: 1 }
    ));
}

#[test]
fn arg_reductions_take_the_first_of_equals() {
    let x = f32s(&[3, 3], &[1.0, 3.0, 3.0, -0.0, 0.0, -1.0, 5.0, NAN, NAN]);
    assert_eq!(ints::<i64>(&one(reduced(Reduce::Argmax, &[1]), &[&x])), [1, 0, 1]);
    assert_eq!(ints::<i64>(&one(reduced(Reduce::Argmin, &[1]), &[&x])), [0, 2, 1]);
    assert_eq!(ints::<i64>(&one(reduced(Reduce::Argmax, &[0]), &[&x])), [2, 2, 2]);
    let u = tensor(DType::U64, &[3], &[1u64, u64::MAX, 0]);
    assert_eq!(ints::<i64>(&one(reduced(Reduce::Argmax, &[0]), &[&u])), [1]);
    assert_eq!(ints::<i64>(&one(reduced(Reduce::Argmin, &[0]), &[&u])), [2]);
}

#[test]
fn windows_overlap_and_dilate() {
    let x = f32s(&[2, 5], &[0., 1., 2., 3., 4., 10., 11., 12., 13., 14.]);
    let window =
        |axis, size, stride, dilation| Atom::Slide(Slide::Window { axis, size, stride, dilation });
    let w = one(window(1, 2, 2, 2), &[&x]);
    assert_eq!(w.shape(), [2, 2, 2]);
    assert_f32(&w, &[0., 2., 2., 4., 10., 12., 12., 14.]);
    let w = one(window(0, 2, 1, 1), &[&x]);
    assert_eq!(w.shape(), [1, 5, 2]);
    assert_f32(&w, &[0., 10., 1., 11., 2., 12., 3., 13., 4., 14.]);
    assert_eq!(one(window(1, 6, 1, 1), &[&x]).shape(), [2, 0, 6]);
    assert!(try_one(window(1, 7, 1, 1), &[&x]).is_err());
}

fn q8_rows() -> Tensor {
    let mut bytes = Vec::new();
    for row in 0..3i8 {
        bytes.extend(f16::from_f32(0.5).to_le_bytes());
        bytes.extend((0..32).map(|i| (i - 16 + row) as u8));
    }
    Tensor::new(DType::Q8_0, vec![3, 32], Bytes::owned(AlignedBytes::from_slice(&bytes))).unwrap()
}

#[test]
fn quantized_tensors_are_decoded_encoded_and_moved_whole() {
    let x = q8_rows();
    let decoded = one(cast(DType::F32), &[&x]);
    let want: Vec<f32> =
        (0..3).flat_map(|r| (0..32).map(move |i| 0.5 * (i - 16 + r) as f32)).collect();
    assert_f32(&decoded, &want);
    let picked = one(Atom::Read(Read::Gather { axis: 0 }), &[&x, &i64s(&[2, 0])]);
    assert_eq!(picked.dtype(), DType::Q8_0);
    assert_f32(&one(cast(DType::F32), &[&picked]), &[&want[64..], &want[..32]].concat());
    let joined = one(Atom::Write(Write::Concat { axis: 0 }), &[&picked, &x]);
    assert_eq!(joined.shape(), [5, 32]);
    let set = Atom::Write(Write::Scatter { axis: 0, mode: Scatter::Set });
    let written = one(set, &[&x, &i64s(&[1, 2]), &picked]);
    let rows = [&want[..32], &want[64..], &want[..32]].concat();
    assert_f32(&one(cast(DType::F32), &[&written]), &rows);
    let add = Atom::Write(Write::Scatter { axis: 0, mode: Scatter::Add });
    assert!(try_one(add, &[&x, &i64s(&[1, 2]), &picked]).is_err());
    let encoded = one(Atom::Write(Write::Encode(DType::Q8_0)), &[&f32s(&[1, 32], &[127.0; 32])]);
    assert_f32(&one(cast(DType::F32), &[&encoded]), &[127.0; 32]);
    assert!(
        try_one(Atom::Write(Write::Encode(DType::Q8_0)), &[&f32s(&[2, 16], &[1.0; 32])]).is_err()
    );
    assert!(try_one(Atom::Add, &[&x, &x]).is_err());
}
