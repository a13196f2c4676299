//! Pooling over one to three spatial axes.

use cyb_ir::{Attrs, Builder, Case, Fill, IrError, Jet, Reduce, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, ELEMENTWISE, EXACT, arity, f32_of_rank};

/// `max_pool{kernel, strides, pads, dilations}(x[N, C, S...]) -> [N, C, O...]`: the greatest of
/// each window. `pads` holds what lies before each axis, then what lies after; it never wins.
pub static MAX_POOL: Jet = Jet {
    name: "max_pool",
    summary: "greatest element of each window",
    define: |b, inputs, attrs| {
        arity("max_pool", inputs, 1..=1)?;
        let window = Window::read(attrs, b.fact(inputs[0]).rank())?;
        let mut x = inputs[0];
        for axis in 0..window.rank() {
            let (before, after) = window.pad(axis);
            if before + after > 0 {
                x = b.pad(x, 2 + axis, before, after, f64::NEG_INFINITY)?;
            }
        }
        let x = window.slide(b, x, 2)?;
        let axes: Vec<usize> = (2 + window.rank()..2 + 2 * window.rank()).collect();
        Ok(vec![b.reduce(Reduce::Max, x, &axes)?])
    },
    signatures: || signatures(Attrs::new()),
    cases: || {
        let mut cases = cases(Attrs::new());
        let nan = vec![1.0, -3.0, f32::NAN, 0.0, -0.0, f32::INFINITY, 2.0, f32::NEG_INFINITY, 5.0];
        let attrs = window(&[3, 2], &[1, 1], &[1, 1, 1, 0], &[1, 1]);
        cases.push(Case::new("nan", attrs).input(DType::F32, &[1, 2, 7, 21], Fill::Floats(nan)));
        for (dtype, low) in [(DType::U8, 0), (DType::I8, -128)] {
            let codes = (0..251).map(|i| low + (i * 89 + 255) % 256).collect();
            let attrs = window(&[3, 5], &[1, 2], &[1, 2, 1, 2], &[1, 1]);
            let case = Case::new(format!("codes {dtype}"), attrs);
            cases.push(case.input(dtype, &[1, 3, 9, 37], Fill::Ints(codes)));
        }
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

/// `average_pool{kernel, strides, pads, dilations, extra, include_pad}(x[N, C, S...])
/// -> [N, C, O...]`: the mean of each window. Padding counts as zeros if `include_pad`, else not
/// at all; the `extra` cells past the end of each axis, which let a last partial window be, never
/// count.
pub static AVERAGE_POOL: Jet = Jet {
    name: "average_pool",
    summary: "mean of each window",
    define: define_average,
    signatures: || signatures(averaging(2, true)),
    cases: || {
        let mut all = cases(averaging(0, true));
        for case in &mut all {
            let rank = case.inputs[0].0.rank() - 2;
            case.attrs = case.attrs.clone().with("extra", vec![0i64; rank]);
        }
        let attrs = window(&[3, 3], &[2, 2], &[0; 4], &[1, 1]);
        let attrs = attrs.with("include_pad", false);
        all.push(
            Case::new("partial windows", attrs.with("extra", vec![1, 1])).normal(&[1, 2, 4, 4]),
        );
        let attrs = window(&[3, 2], &[2, 2], &[1, 1, 1, 0], &[1, 1]).with("include_pad", false);
        all.push(Case::new("pads left out", attrs.with("extra", vec![0, 1])).normal(&[2, 3, 9, 8]));
        all
    },
    tolerance: ELEMENTWISE,
    in_place: &[],
};

fn averaging(rank: usize, include_pad: bool) -> Attrs {
    Attrs::new().with("extra", vec![0i64; rank]).with("include_pad", include_pad)
}

fn define_average(b: &mut Builder, inputs: &[ValueId], attrs: &Attrs) -> Defined {
    arity("average_pool", inputs, 1..=1)?;
    let window = Window::read(attrs, b.fact(inputs[0]).rank())?;
    let include_pad = attrs.flag("include_pad")?;
    let extra = attrs.sizes("extra")?;
    if extra.len() != window.rank() {
        return Err(wrong("extra", attrs));
    }
    let (mut x, mut counts) = (inputs[0], None);
    for axis in 0..window.rank() {
        let (before, after) = window.pad(axis);
        let dtype = b.fact(x).dtype;
        let one = b.scalar(dtype, 1.0)?;
        let len = b.dim(x, 2 + axis)?;
        let mut ones = b.broadcast(one, [len])?;
        ones = b.pad(ones, 0, before, after, if include_pad { 1.0 } else { 0.0 })?;
        ones = b.pad(ones, 0, 0, extra[axis], 0.0)?;
        let [size, stride, dilation] = window.axes[axis];
        let ones = b.window(ones, 0, size, stride, dilation)?;
        let count = b.sum(ones, &[1])?; // [O]
        let len = b.dim(count, 0)?;
        let mut shape = vec![Dim::from(1); window.rank()];
        shape[axis] = len;
        let count = b.reshape(count, shape)?;
        counts = Some(match counts {
            None => count,
            Some(so_far) => b.mul(so_far, count)?,
        });
        if before + after + extra[axis] > 0 {
            x = b.pad(x, 2 + axis, before, after + extra[axis], 0.0)?;
        }
    }
    let x = window.slide(b, x, 2)?;
    let axes: Vec<usize> = (2 + window.rank()..2 + 2 * window.rank()).collect();
    let sum = b.sum(x, &axes)?;
    match counts {
        None => Ok(vec![sum]),
        Some(counts) => Ok(vec![b.div(sum, counts)?]),
    }
}

/// Size, stride and dilation of each axis, and its padding.
struct Window {
    axes: Vec<[usize; 3]>,
    pads: Vec<usize>,
}

impl Window {
    fn read(attrs: &Attrs, rank: usize) -> Result<Window, IrError> {
        let [kernel, strides, dilations] =
            ["kernel", "strides", "dilations"].map(|name| attrs.sizes(name));
        let (kernel, strides, dilations) = (kernel?, strides?, dilations?);
        let pads = attrs.sizes("pads")?;
        let n = kernel.len();
        if !(1..=3).contains(&n) || n + 2 != rank || kernel.contains(&0) {
            return Err(wrong("kernel", attrs));
        }
        for (name, given, want) in
            [("strides", &strides, n), ("dilations", &dilations, n), ("pads", &pads, 2 * n)]
        {
            if given.len() != want {
                return Err(wrong(name, attrs));
            }
        }
        let axes = (0..n).map(|i| [kernel[i], strides[i], dilations[i]]).collect();
        Ok(Window { axes, pads })
    }

    fn rank(&self) -> usize {
        self.axes.len()
    }

    fn pad(&self, axis: usize) -> (usize, usize) {
        (self.pads[axis], self.pads[self.rank() + axis])
    }

    fn slide(&self, b: &mut Builder, mut x: ValueId, first: usize) -> Result<ValueId, IrError> {
        for (axis, &[size, stride, dilation]) in self.axes.iter().enumerate() {
            x = b.window(x, first + axis, size, stride, dilation)?;
        }
        Ok(x)
    }
}

fn wrong(name: &str, attrs: &Attrs) -> IrError {
    let got = attrs.get(name).map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let want = "one entry for each of one to three spatial axes (pads: two)";
    IrError::Attr { name: name.to_owned(), want, got }
}

fn window(kernel: &[usize], strides: &[usize], pads: &[usize], dilations: &[usize]) -> Attrs {
    Attrs::new()
        .with("kernel", kernel)
        .with("strides", strides)
        .with("pads", pads)
        .with("dilations", dilations)
}

fn joined(a: Attrs, b: &Attrs) -> Attrs {
    b.iter().fold(a, |a, (name, value)| a.with(name, value.clone()))
}

fn signatures(more: Attrs) -> Vec<Signature> {
    let attrs = joined(window(&[2, 2], &[2, 2], &[0; 4], &[1, 1]), &more);
    vec![Signature { inputs: vec![f32_of_rank(4)], attrs }]
}

fn cases(more: Attrs) -> Vec<Case> {
    let case =
        |name: &str, x: &[usize], attrs: Attrs| Case::new(name, joined(attrs, &more)).normal(x);
    vec![
        case("2x2", &[1, 3, 8, 10], window(&[2, 2], &[2, 2], &[0; 4], &[1, 1])),
        case("5x5 padded", &[1, 4, 10, 37], window(&[5, 5], &[1, 1], &[2; 4], &[1, 1])),
        case("5x5 of a large plane", &[1, 2, 41, 67], window(&[5, 5], &[1, 1], &[2; 4], &[1, 1])),
        case("small, uneven", &[3, 5, 6, 4], window(&[3, 2], &[1, 1], &[2, 0, 1, 1], &[1, 2])),
        case("odd", &[2, 3, 13, 9], window(&[3, 4], &[2, 3], &[1, 2, 0, 1], &[1, 1])),
        case("dilated", &[1, 2, 12, 40], window(&[3, 2], &[1, 1], &[1, 0, 1, 0], &[2, 3])),
        case("one axis", &[2, 3, 31], window(&[4], &[3], &[1, 1], &[1])),
        case("three axes", &[1, 2, 4, 5, 20], window(&[2, 2, 3], &[1, 2, 1], &[0; 6], &[1; 3])),
        case("whole", &[2, 5, 7, 7], window(&[7, 7], &[1, 1], &[0; 4], &[1, 1])),
    ]
}
