//! Lookup in a table of rows.

use cyb_ir::{Attrs, Builder, Case, Fact, Fill, Jet, Signature, ValueId};
use cyb_tensor::{DType, Dim};

use crate::sugar::{Defined, EXACT, arity};

/// `embedding(table[V, D], ids[...]) -> [..., D]` as `F32`; only the rows asked for are decoded.
pub static EMBEDDING: Jet = Jet {
    name: "embedding",
    summary: "rows of a table of any dtype",
    define,
    signatures: || {
        let table = Fact::new(DType::F32, [Dim::symbol("v"), Dim::symbol("d")]);
        [2, 1]
            .map(|rank| {
                let ids = Fact::new(DType::I64, (0..rank).map(|i| Dim::symbol(&format!("s{i}"))));
                Signature { inputs: vec![table.clone(), ids], attrs: Attrs::new() }
            })
            .into()
    },
    cases: || {
        let table =
            |dtype: DType| {
                Case::new(dtype.name(), Attrs::new())
                    .input(dtype, &[19, 256], Fill::Normal(1.0))
                    .input(DType::I32, &[5], Fill::Ints(vec![0, 18, 7, 7, 1]))
            };
        let mut cases: Vec<Case> =
            DType::ALL.iter().filter(|d| d.is_quantized()).map(|&d| table(d)).collect();
        cases.extend([DType::F32, DType::F16, DType::BF16].map(table));
        cases
    },
    tolerance: EXACT,
    in_place: &[],
};

fn define(b: &mut Builder, inputs: &[ValueId], _: &Attrs) -> Defined {
    arity("embedding", inputs, 2..=2)?;
    let rows = b.gather(inputs[0], 0, inputs[1])?;
    Ok(vec![b.cast(rows, DType::F32)?])
}
