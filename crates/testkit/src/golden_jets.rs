//! The operations of `golden/jets`: inputs, and what PyTorch makes of them. Every backend computes
//! the same cases and is held to the jet's own tolerance.

use std::fs;
use std::path::Path;

use cyb_ir::{Attr, Attrs, Float, Jet};
use cyb_tensor::{DType, Tensor};
use serde_json::Value;

use crate::golden;

/// One call of a jet with its expected outputs.
#[derive(Debug)]
pub struct GoldenCase {
    /// `JET.CASE`.
    pub name: String,
    /// The jet that is called.
    pub jet: &'static Jet,
    /// Its attributes.
    pub attrs: Attrs,
    /// Its inputs, in the order of the definition.
    pub inputs: Vec<Tensor>,
    /// What PyTorch gives.
    pub outputs: Vec<Tensor>,
}

/// Every case, in the order of their names.
///
/// # Panics
/// When a file is unreadable or names a jet that is not in the table.
pub fn golden_jets() -> Vec<GoldenCase> {
    let entries =
        fs::read_dir(golden("jets")).unwrap_or_else(|error| panic!("golden/jets: {error}"));
    let paths =
        entries.map(|entry| entry.unwrap_or_else(|error| panic!("golden/jets: {error}")).path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "npz")).collect();
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> GoldenCase {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut arrays = cyb_formats::npz::read(path).unwrap_or_else(|error| panic!("{error}"));
    let jet_name = name.split('.').next().unwrap_or_default();
    let jet = cyb_jets::find(jet_name).unwrap_or_else(|| panic!("{name}: no jet {jet_name}"));
    let attrs = arrays.shift_remove("attrs").unwrap_or_else(|| panic!("{name}: no attrs"));
    let attrs = serde_json::from_slice(attrs.bytes().as_slice())
        .unwrap_or_else(|error| panic!("{name}: attrs: {error}"));
    let Value::Object(attrs) = attrs else { panic!("{name}: attrs are no object") };
    let attrs = attrs.iter().fold(Attrs::new(), |all, (key, value)| {
        all.with(key, attr(value).unwrap_or_else(|| panic!("{name}: attribute {key} is {value}")))
    });
    let mut numbered = |kind: &str| -> Vec<Tensor> {
        (0..).map_while(|i| arrays.shift_remove(&format!("{kind}{i}"))).collect()
    };
    let (inputs, outputs) = (numbered("in"), numbered("out"));
    assert!(arrays.is_empty() && !outputs.is_empty(), "{name}: what are {:?}", arrays.keys());
    GoldenCase { name, jet, attrs, inputs, outputs }
}

/// Numbers with a point are floats, others integers.
fn attr(value: &Value) -> Option<Attr> {
    match value {
        Value::Bool(flag) => Some(Attr::Bool(*flag)),
        Value::String(text) => Some(Attr::Str(text.clone())),
        Value::Number(number) => match number.as_i64() {
            Some(int) => Some(Attr::Int(int)),
            None => Some(Attr::Float(Float::new(number.as_f64()?))),
        },
        Value::Array(items) => {
            items.iter().map(Value::as_i64).collect::<Option<_>>().map(Attr::Ints)
        }
        Value::Null | Value::Object(_) => None,
    }
}

impl GoldenCase {
    /// Compares with what was computed, within the jet's tolerance; the message names the first
    /// value that is off.
    ///
    /// # Errors
    /// When an output is missing, has another shape or dtype, or a value is too far off.
    pub fn check(&self, computed: &[Tensor]) -> Result<(), String> {
        let name = &self.name;
        if computed.len() != self.outputs.len() {
            return Err(format!("{name}: {} outputs, not {}", computed.len(), self.outputs.len()));
        }
        for (index, (got, want)) in computed.iter().zip(&self.outputs).enumerate() {
            let facts = |t: &Tensor| format!("{} {:?}", t.dtype(), t.shape());
            if facts(got) != facts(want) || want.dtype() != DType::F32 {
                return Err(format!(
                    "{name}: output {index} is {}, not {}",
                    facts(got),
                    facts(want)
                ));
            }
            let floats = |t: &Tensor| t.to_f32_vec().map_err(|error| format!("{name}: {error}"));
            let (got, want_all) = (floats(got)?, floats(want)?);
            let row = want.shape().last().copied().unwrap_or(1).max(1);
            for (at, (got, want)) in got.chunks(row).zip(want_all.chunks(row)).enumerate() {
                self.check_row(got, want)
                    .map_err(|why| format!("{name}: output {index}, row {at}, {why}"))?;
            }
        }
        Ok(())
    }

    fn check_row(&self, got: &[f32], want: &[f32]) -> Result<(), String> {
        let finite = want.iter().filter(|value| value.is_finite());
        let largest = finite.fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let tolerance = self.jet.tolerance_of(self.inputs.iter().map(Tensor::dtype));
        let bound = tolerance.absolute + tolerance.relative * largest;
        for (column, (&got, &want)) in got.iter().zip(want).enumerate() {
            let same = got == want || (got.is_nan() && want.is_nan());
            let near = (got - want).abs() <= bound;
            if !same && !near {
                return Err(format!(
                    "column {column}: {got:e}, PyTorch has {want:e}, allowed ±{bound:e}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_found() {
        let cases = golden_jets();
        assert!(cases.len() > 100, "{} cases", cases.len());
        for case in &cases {
            assert_eq!(case.check(&case.outputs), Ok(()));
            assert!(case.check(&[]).is_err());
            let off: Vec<Tensor> = case
                .outputs
                .iter()
                .map(|output| {
                    let values = output.to_f32_vec().unwrap();
                    let off: Vec<f32> = values
                        .iter()
                        .map(|v| if v.is_finite() { v * 1.01 + 0.01 } else { 0.0 })
                        .collect();
                    Tensor::from_f32(output.shape().to_vec(), &off).unwrap()
                })
                .collect();
            assert!(case.check(&off).is_err(), "{}", case.name);
        }
    }
}
