//! Storing keys or values of new tokens.

use cyb_ir::{Attrs, Case, Fact, Fill, Jet, Scatter, Signature};
use cyb_tensor::{DType, Dim};

use crate::sugar::{EXACT, arity};

/// `kv_cache(pool[N, H, D], slots[T], new[T, H, D]) -> pool[N, H, D]`: row `slots[t]` of the pool
/// becomes `new[t]`, stored in the pool's dtype. A kernel writes in place. Two tokens never share a
/// slot.
pub static KV_CACHE: Jet = Jet {
    name: "kv_cache",
    summary: "stores keys or values of new tokens in pool slots",
    define: |b, inputs, _| {
        arity("kv_cache", inputs, 3..=3)?;
        let [pool, slots, new] = [inputs[0], inputs[1], inputs[2]];
        let stored = b.encode(new, b.fact(pool).dtype)?;
        Ok(vec![b.scatter(pool, 0, Scatter::Set, slots, stored)?])
    },
    signatures: || {
        let (n, h, d, t) = (Dim::symbol("n"), Dim::symbol("h"), Dim::symbol("d"), Dim::symbol("t"));
        vec![Signature {
            inputs: vec![
                Fact::new(DType::F16, [n, h.clone(), d.clone()]),
                Fact::new(DType::I32, [t.clone()]),
                Fact::new(DType::F32, [t, h, d]),
            ],
            attrs: Attrs::new(),
        }]
    },
    cases: || {
        [DType::F32, DType::F16, DType::BF16, DType::Q8_0]
            .map(|dtype| {
                Case::new(dtype.name(), Attrs::new())
                    .input(dtype, &[64, 2, 64], Fill::Normal(1.0))
                    .input(DType::I32, &[3], Fill::Ints(vec![63, 0, 17]))
                    .normal(&[3, 2, 64])
            })
            .into()
    },
    tolerance: EXACT,
    in_place: &[(0, 0)],
};
