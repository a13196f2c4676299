//! Every atom and kind, on values worked out by hand or by plain loops.

use std::collections::BTreeMap;

use bytemuck::NoUninit;
use cyb_ir::{
    Atom, Builder, Cmp, Exp, Fact, Float, Graph, IrError, Op, Read, Reduce, Scatter, Slide,
    ValueId, Write,
};
use cyb_tensor::{AlignedBytes, Bindings, Bytes, DType, Dim, Tensor};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::{InterpError, Prepared, evaluate, evaluate_node};

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

/// (sum, x) -> (sum + x, sum * 2)
fn running_sum(width: Dim) -> Graph {
    let mut b = Builder::new();
    let fact = Fact::new(DType::F32, [width]);
    let (sum, x) = (b.input("sum", fact.clone()), b.input("x", fact));
    let next = b.add(sum, x).unwrap();
    let twice = b.scale(sum, 2.0).unwrap();
    b.output("sum", next);
    b.output("twice", twice);
    b.finish()
}

#[test]
fn scans_carry_their_state() {
    let scan = Slide::Scan { states: 1, body: running_sum(2.into()).into() };
    let op = Op::Atom(Atom::Slide(scan));
    let start = f32s(&[2], &[0.0, 100.0]);
    let x = f32s(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let out = evaluate_node(&op, &[start.clone(), x], &Bindings::new()).unwrap();
    assert_f32(&out[0], &[9.0, 112.0]);
    assert_eq!(out[1].shape(), [3, 2]);
    assert_f32(&out[1], &[0.0, 200.0, 2.0, 204.0, 8.0, 212.0]);
    let out = evaluate_node(&op, &[start, f32s(&[0, 2], &[])], &Bindings::new()).unwrap();
    assert_f32(&out[0], &[0.0, 100.0]);
    assert_eq!(out[1].shape(), [0, 2]);
}

#[test]
fn attributes_take_their_symbols_from_the_bindings() {
    let bindings = Bindings::from([("P".into(), 1), ("N".into(), 2)]);
    let (p, n) = (Dim::symbol("P"), Dim::symbol("N"));
    let x = f32s(&[3, 2], &[0., 1., 2., 3., 4., 5.]);
    let op = |read| Op::Atom(Atom::Read(read));
    let slice = op(Read::Slice { axis: 0, start: p.clone(), len: n.clone(), step: 1 });
    assert_f32(
        &evaluate_node(&slice, std::slice::from_ref(&x), &bindings).unwrap()[0],
        &[2., 3., 4., 5.],
    );
    let wide = op(Read::Broadcast(vec![n.clone(), 3.into(), n.clone()]));
    assert_eq!(
        evaluate_node(&wide, std::slice::from_ref(&x), &bindings).unwrap()[0].shape(),
        [2, 3, 2]
    );
    let scan = Slide::Scan { states: 1, body: running_sum(n).into() };
    let out = evaluate_node(&Op::Atom(Atom::Slide(scan)), &[f32s(&[2], &[0., 1.]), x], &bindings);
    assert_f32(&out.unwrap()[0], &[6.0, 10.0]);
    let bad = op(Read::Reshape(vec![p, Dim::symbol("N")]));
    let error = evaluate_node(&bad, &[f32s(&[3], &[0.; 3])], &bindings).unwrap_err();
    assert!(matches!(error, InterpError::Ir(IrError::Operand { .. })), "{error}");
}

/// y = scale * x; pool[slots] = y; both symbolic.
fn pooled() -> Graph {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S"), 2.into()]));
    let slots = b.input("slots", Fact::new(DType::I64, [Dim::symbol("S")]));
    let pool = b.state("pool", Fact::new(DType::F32, [Dim::symbol("P"), 2.into()]));
    b.set_label("blk.0");
    let y = b.scale(x, 10.0).unwrap();
    let new = b.scatter(pool, 0, Scatter::Set, slots, y).unwrap();
    let total = b.sum(new, &[0, 1]).unwrap();
    b.output("y", y);
    b.output("total", total);
    b.update(pool, new);
    b.finish()
}

#[test]
fn graphs_bind_symbols_and_update_states() {
    let graph = pooled();
    let x = f32s(&[1, 2], &[1.0, 2.0]);
    let inputs = |x: Tensor, slots: Tensor| {
        BTreeMap::from([("x".to_owned(), x), ("slots".to_owned(), slots)])
    };
    let fresh = || BTreeMap::from([("pool".to_owned(), f32s(&[3, 2], &[0.0; 6]))]);
    let mut states = fresh();
    let out = evaluate(&graph, &inputs(x.clone(), i64s(&[1])), &mut states).unwrap();
    assert_f32(&out["y"], &[10.0, 20.0]);
    assert_f32(&out["total"], &[30.0]);
    assert_f32(&states["pool"], &[0.0, 0.0, 10.0, 20.0, 0.0, 0.0]);
    let prepared = Prepared::new(&graph).unwrap();
    let two = inputs(f32s(&[2, 2], &[1.0; 4]), i64s(&[0, 2]));
    let out = prepared.run(&Bindings::new(), &two, &mut states).unwrap();
    assert_f32(&out["total"], &[70.0]);

    let error = |inputs: BTreeMap<String, Tensor>| {
        let mut states = fresh();
        let error = evaluate(&graph, &inputs, &mut states).unwrap_err();
        assert_f32(&states["pool"], &[0.0; 6]);
        error.to_string()
    };
    assert_eq!(error(BTreeMap::new()), "input 'x' is missing: give f32[S, 2]");
    assert_eq!(
        error(inputs(x.clone(), i64s(&[0, 1]))),
        "input 'slots' must be i64[S] (S is 1 from input 'x'), not i64[2]"
    );
    assert_eq!(error(inputs(i64s(&[1]), i64s(&[1]))), "input 'x' must be f32[S, 2], not i64[1]");
    assert_eq!(
        error(inputs(x.clone(), i64s(&[7]))),
        "blk.0 write: index 7 is outside 0..3, axis 0"
    );
    let mut more = inputs(x.clone(), i64s(&[1]));
    more.insert("z".to_owned(), x.clone());
    assert_eq!(error(more), "input 'z' is unknown: the graph takes x, slots");
    let mut none = BTreeMap::new();
    let missing = evaluate(&graph, &inputs(x, i64s(&[1])), &mut none).unwrap_err();
    assert_eq!(missing.to_string(), "state 'pool' is missing: give f32[P, 2]");
}

#[test]
fn sizes_are_checked_when_they_are_known() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [Dim::symbol("S")]));
    let y = b.reshape(x, [Dim::symbol("T"), 2.into()]).unwrap();
    b.output("y", y);
    let prepared = Prepared::new(&b.finish()).unwrap();
    let run = |t: usize| {
        let inputs = BTreeMap::from([("x".to_owned(), f32s(&[6], &[0.0; 6]))]);
        prepared.run(&Bindings::from([("T".into(), t)]), &inputs, &mut BTreeMap::new())
    };
    assert_eq!(run(3).unwrap()["y"].shape(), [3, 2]);
    assert!(
        run(4).unwrap_err().to_string().contains("[6] does not hold as many elements as [4, 2]")
    );
    assert!(run(usize::MAX / 2).is_err());
    let mut b = Builder::new();
    let n = b.iota(Dim::symbol("N"));
    let huge = b.broadcast(n, [Dim::symbol("N"), Dim::symbol("N")]).unwrap();
    let huge = b.sum(huge, &[0, 1]).unwrap();
    b.output("y", huge);
    let prepared = Prepared::new(&b.finish()).unwrap();
    let bindings = Bindings::from([("N".into(), 1 << 40)]);
    let error = prepared.run(&bindings, &BTreeMap::new(), &mut BTreeMap::new()).unwrap_err();
    assert!(error.to_string().contains("more elements than can be counted"), "{error}");
    assert!(matches!(
        prepared.run(&Bindings::new(), &BTreeMap::new(), &mut BTreeMap::new()),
        Err(InterpError::Dim(_))
    ));
}

#[test]
fn a_matrix_product_takes_no_memory_of_its_size() {
    // Only one row of the 2^44 products is read; all of them would take 2^46 bytes.
    let (t, n, k) = (1usize << 12, 1usize << 12, 1usize << 20);
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [1.into(), 1.into(), 1.into()]));
    let wide = b.broadcast(x, [t.into(), n.into(), k.into()]).unwrap();
    let product = b.mul(wide, x).unwrap();
    let few = b.slice(product, 0, 0, 1).unwrap();
    let few = b.slice(few, 1, 0, 1).unwrap();
    let sum = b.sum(few, &[2]).unwrap();
    b.output("y", sum);
    let inputs = BTreeMap::from([("x".to_owned(), f32s(&[1, 1, 1], &[3.0]))]);
    let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
    assert_f32(&out["y"], &[9.0 * k as f32]);
}

#[test]
fn long_chains_of_expressions_are_bounded() {
    let mut b = Builder::new();
    let x = b.input("x", Fact::new(DType::F32, [700.into()]));
    let mut y = x;
    for i in 0..1000 {
        y = b.offset(y, i as f64).unwrap();
    }
    b.output("y", y);
    let inputs = BTreeMap::from([("x".to_owned(), f32s(&[700], &[1.0; 700]))]);
    let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
    assert_f32(&out["y"], &[499_501.0; 700]);
}

/// Equal bits; of floats, equal values or both NaN.
fn assert_same(got: &Tensor, want: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (want.dtype(), want.shape()), "{what}");
    let bytes = |t: &Tensor| match t.dtype() {
        // Exact, and it makes every NaN the same.
        DType::F16 | DType::F32 | DType::F64 => one(cast(DType::F64), &[t])
            .to_vec::<f64>(DType::F64)
            .unwrap()
            .into_iter()
            .map(|x| if x.is_nan() { i64::MAX } else { (x + 0.0).to_bits() as i64 })
            .collect(),
        _ => one(cast(DType::I64), &[t]).to_vec::<i64>(DType::I64).unwrap(),
    };
    assert_eq!(bytes(got), bytes(want), "{what}");
}

#[test]
fn random_chains_equal_numpy() {
    let arrays = cyb_formats::npz::read(&cyb_testkit::golden("atoms.npz")).unwrap();
    let mut cases = 0;
    for i in 0.. {
        let Some(text) = arrays.get(&format!("{i}.graph")) else { break };
        let text = String::from_utf8(text.bytes().as_slice().to_vec()).unwrap();
        let mut graph = cyb_ir::parse(&text, &|_| None, &|_| None).unwrap();
        let named = |kind: &str| -> BTreeMap<String, Tensor> {
            let prefix = format!("{i}.{kind}.");
            let of = |(name, t): (&String, &Tensor)| {
                Some((name.strip_prefix(&prefix)?.to_owned(), t.clone()))
            };
            arrays.iter().filter_map(of).collect()
        };
        let (inputs, wanted) = (named("in"), named("out"));
        let out = evaluate(&graph, &inputs, &mut BTreeMap::new()).unwrap();
        for (name, want) in &wanted {
            assert_same(&out[name], want, &format!("case {i}, %{name} of\n{text}"));
        }
        // With one output the steps before it are read once, so they stay expressions.
        let last = graph.outputs.split_off(graph.outputs.len() - 1);
        graph.outputs = last;
        let name = graph.outputs[0].0.to_string();
        let out = evaluate(&graph, &inputs, &mut BTreeMap::new()).unwrap();
        assert_same(&out[&name], &wanted[&name], &format!("case {i}, only %{name} of\n{text}"));
        cases += 1;
    }
    assert_eq!(cases, 120);
}

/// A view of a graph value, from numbers that are made to fit its shape.
fn push_view(b: &mut Builder, v: ValueId, choice: (u8, usize, usize, bool)) -> ValueId {
    let (kind, p, q, flip) = choice;
    let shape: Vec<usize> = b.shape(v).iter().map(|d| d.known().unwrap()).collect();
    let rank = shape.len();
    match kind {
        _ if rank == 0 => b.broadcast(v, [(1 + p % 3).into()]).unwrap(),
        0 => {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.rotate_left(p % rank);
            perm.swap(0, q % rank);
            b.permute(v, &perm).unwrap()
        }
        1 => {
            let axis = p % rank;
            let have = shape[axis];
            let step = 1 + q % 2;
            let len = have.div_ceil(step);
            let start = if flip && have > 0 { (len - 1) * step } else { 0 };
            b.strided(v, axis, start, len, if flip { -(step as i64) } else { step as i64 }).unwrap()
        }
        2 => {
            let elems: usize = shape.iter().product();
            let first = (1..=4).rev().find(|n| elems.is_multiple_of(*n)).unwrap_or(1);
            b.reshape(v, [first.into(), (elems / first).into()]).unwrap()
        }
        3 if rank < 5 => {
            let mut wide = shape.clone();
            wide.insert(0, 1 + p % 2);
            b.broadcast(v, wide.into_iter().map(Dim::from)).unwrap()
        }
        4 if rank < 5 && shape[p % rank] >= 2 => b.window(v, p % rank, 2, 1 + q % 2, 1).unwrap(),
        5 if rank < 5 => b.unsqueeze(v, p % (rank + 1)).unwrap(),
        _ => v,
    }
}

proptest! {
    /// A chain of views of an expression gives what its steps give one by one, each on a
    /// contiguous tensor.
    #[test]
    fn chains_of_views_equal_their_steps(
        choices in prop::collection::vec((0u8..6, 0usize..6, 0usize..6, any::<bool>()), 1..8),
        shape in prop::collection::vec(0usize..5, 1..4),
    ) {
        let elems: usize = shape.iter().product();
        let x = f32s(&shape, &(0..elems).map(|i| i as f32).collect::<Vec<_>>());
        let mut b = Builder::new();
        let input = b.input("x", Fact::of(&x));
        let mut v = b.offset(input, 0.5).unwrap();
        let mut step = one(Atom::Add, &[&x, &f32s(&[], &[0.5])]);
        for choice in choices {
            let (nodes, before) = (b.graph().nodes.len(), v);
            v = push_view(&mut b, v, choice);
            if b.graph().nodes.len() > nodes {
                let op = b.graph().nodes[nodes].op.clone();
                step = evaluate_node(&op, &[step], &Bindings::new()).unwrap().remove(0);
            } else {
                prop_assert_eq!(v, before);
            }
        }
        let sum = b.sum(v, &[0]).unwrap();
        b.output("view", v);
        b.output("sum", sum);
        let inputs = BTreeMap::from([("x".to_owned(), x)]);
        let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
        prop_assert_eq!(out["view"].shape(), step.shape());
        prop_assert_eq!(out["view"].to_f32_vec().unwrap(), step.to_f32_vec().unwrap());
        let sum = one(reduced(Reduce::Sum, &[0]), &[&step]);
        prop_assert_eq!(out["sum"].to_f32_vec().unwrap(), sum.to_f32_vec().unwrap());
    }

    /// A matrix product of random sizes against three loops.
    #[test]
    fn matrix_products_equal_three_loops(t in 0usize..5, n in 0usize..5, k in 0usize..70) {
        let x: Vec<f32> = (0..t * k).map(|i| ((i * 37 + 11) % 101) as f32 - 50.0).collect();
        let w: Vec<f32> = (0..n * k).map(|i| ((i * 53 + 7) % 103) as f32 * 0.37).collect();
        let mut b = Builder::new();
        let xv = b.input("x", Fact::new(DType::F32, [t.into(), 1.into(), k.into()]));
        let wv = b.input("w", Fact::new(DType::F32, [n.into(), k.into()]));
        let product = b.mul(xv, wv).unwrap();
        let y = b.sum(product, &[2]).unwrap();
        b.output("y", y);
        let inputs = BTreeMap::from([
            ("x".to_owned(), f32s(&[t, 1, k], &x)),
            ("w".to_owned(), f32s(&[n, k], &w)),
        ]);
        let out = evaluate(&b.finish(), &inputs, &mut BTreeMap::new()).unwrap();
        for i in 0..t {
            for j in 0..n {
                let want: f64 = (0..k).map(|l| f64::from(x[i * k + l] * w[j * k + l])).sum();
                prop_assert_eq!(out["y"].to_f32_vec().unwrap()[i * n + j], want as f32);
            }
        }
    }
}
