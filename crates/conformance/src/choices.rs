//! What a backend says of logits so that they need not leave it: the largest of each row, the first
//! of each in order, sums of exponentials with the sampler's own bits.

use std::sync::Arc;

use cyb_exec::{Executor, PrepareOptions, Running, TOP};
use cyb_ir::{Attrs, Builder, Fact};
use cyb_sample::Workspace;
use cyb_tensor::{DType, Tensor};

use crate::call::floats;
use crate::random::Random;
use crate::{CaseError, Line, Suite, case};

pub(crate) fn check(suite: &Suite<'_>, line: &mut Line) {
    for width in [1, 63, 64, 65, 127, 129, 1000, 5000, 8191, 8192, 8193, 32_000, 151_936, 262_144] {
        for (rows, kind) in [(1, "spread"), (3, "ties"), (5, "impossible"), (2, "broken")] {
            let name = format!("{rows} x {width}, {kind}");
            let mut random = Random(suite.seed ^ width as u64);
            let values = rows_of(&mut random, rows, width, kind);
            case(line, &name, |line| compare(suite, &name, [rows, width], &values, line));
        }
    }
}

fn rows_of(random: &mut Random, rows: usize, width: usize, kind: &str) -> Vec<f32> {
    let mut values: Vec<f32> = (0..rows * width).map(|_| random.normal() * 4.0).collect();
    for (i, value) in values.iter_mut().enumerate() {
        match kind {
            // Few different values, so that equal ones cross every border.
            "ties" => *value = (*value / 3.0).round(),
            "impossible" if i / width == 4 => *value = f32::NEG_INFINITY,
            "impossible" if !random.next().is_multiple_of(3) => *value = f32::NEG_INFINITY,
            _ => {}
        }
    }
    if kind == "broken" {
        values[random.next() as usize % width] = f32::NAN;
        values[width + random.next() as usize % width] = f32::INFINITY;
    }
    values
}

fn compare(
    suite: &Suite<'_>,
    name: &str,
    shape: [usize; 2],
    values: &[f32],
    line: &mut Line,
) -> Result<(), CaseError> {
    let mut b = Builder::new();
    let x = Tensor::from_f32(shape.to_vec(), values)?;
    let input = b.input("x", Fact::new(DType::F32, shape.map(Into::into)));
    let nothing = b.weight("nothing", Tensor::from_f32(vec![1], &[0.0])?);
    let y = b.jet(&cyb_jets::ADD, Attrs::new(), &[input, nothing])?;
    b.output("y", y);
    let options = PrepareOptions::default();
    let executor = Arc::new(Executor::prepare(b.finish(), suite.backends, options)?);
    let mut running = executor.start(&[])?;
    // In the second run what was asked after the first is found before it is asked again; in the
    // third another sum is wanted than then.
    for (round, scale) in [1.3f32, 1.3, 1.0].into_iter().enumerate() {
        running.input(0, &mut |to| to.copy_from_slice(x.bytes().as_slice()));
        running.run()?;
        let name = format!("{name}, run {round}");
        let here = answers(&mut running, &name, shape, values, scale, line)?;
        line.on_first += usize::from(here && round == 2);
    }
    Ok(())
}

/// Checks what a backend answers; whether it does.
fn answers(
    running: &mut Running,
    name: &str,
    [rows, width]: [usize; 2],
    values: &[f32],
    scale: f32,
    line: &mut Line,
) -> Result<bool, CaseError> {
    line.check(
        name,
        floats(running.output(0)?) == values || values.iter().any(|v| v.is_nan()),
        || "adding nothing changed the rows".into(),
    );
    let best = running.largest(0)?.map(<[u32]>::to_vec);
    let sums = running.exponentials(0, scale)?.map(<[f64]>::to_vec);
    let Some(top) = running.top(0)? else { return Ok(false) };
    let mut workspace = Workspace::default();
    for row in 0..rows {
        let logits = &values[row * width..][..width];
        let got: Vec<(u32, f32)> = top.places[row * TOP..][..TOP]
            .iter()
            .copied()
            .zip(top.values[row * TOP..][..TOP].iter().copied())
            .collect();
        let what = format!("{name}, row {row}");
        let broken = logits.iter().any(|l| l.is_nan() || *l == f32::INFINITY);
        if broken {
            line.check(&what, got[0].1.is_nan(), || format!("it begins with {:?}", got[0]));
            let said = best.as_ref().map(|best| best[row]);
            line.check(&what, said.is_none_or(|best| best == u32::MAX), || format!("{said:?}"));
            continue;
        }
        let mut want: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        want.sort_by(|a, b| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0)));
        want.resize(TOP, (u32::MAX, f32::NEG_INFINITY));
        line.check(&what, got == want, || {
            let at = got.iter().zip(&want).position(|(g, w)| g != w).unwrap_or(0);
            format!("element {at} is {:?}, not {:?}", got[at], want[at])
        });
        let said = best.as_ref().map(|best| best[row]);
        line.check(&what, said.is_none_or(|best| best == want[0].0), || format!("{said:?}"));
        let sum = cyb_sample::mass(logits, scale, &mut workspace).ok();
        let said = sums.as_ref().map(|sums| sums[row]);
        let same = sum.zip(said).is_none_or(|(sum, said)| sum.to_bits() == said.to_bits());
        line.check(&what, same, || format!("the sum is {said:?}, not {sum:?}"));
    }
    Ok(true)
}
