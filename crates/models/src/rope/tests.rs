use std::path::Path;

use serde_json::Value;

use super::{Rope, Scaling, Style, Yarn};

/// What the golden file says and what is computed.
fn case(name: &str) -> (Rope, Vec<f32>, f32, usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../golden/rope_frequencies")
        .join(format!("{name}.npz"));
    let arrays = cyb_formats::npz::read(&path).unwrap();
    let attrs: Value = serde_json::from_slice(arrays["attrs"].bytes().as_slice()).unwrap();
    let float = |key: &str| attrs.get(key).and_then(Value::as_f64);
    let floats = |key: &str| -> Vec<f32> {
        let list = attrs[key].as_array().unwrap();
        list.iter().map(|v| v.as_f64().unwrap() as f32).collect()
    };
    let size = |key: &str| attrs.get(key).and_then(Value::as_u64).map(|n| n as usize);
    let original = || size("original_max_position_embeddings").unwrap();
    let scaling = match attrs["rope_type"].as_str().unwrap() {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: float("factor").unwrap() as f32 },
        "dynamic" => Scaling::Ntk {
            factor: float("factor").unwrap() as f32,
            original_context_length: size("max_position_embeddings").unwrap(),
        },
        "llama3" => Scaling::Llama3 {
            factor: float("factor").unwrap() as f32,
            low_freq_factor: float("low_freq_factor").unwrap() as f32,
            high_freq_factor: float("high_freq_factor").unwrap() as f32,
            original_context_length: original(),
        },
        "yarn" => {
            let mut yarn = Yarn::new(float("factor").unwrap(), original());
            yarn.beta_fast = float("beta_fast").unwrap_or(yarn.beta_fast);
            yarn.beta_slow = float("beta_slow").unwrap_or(yarn.beta_slow);
            yarn.truncate = attrs.get("truncate").and_then(Value::as_bool).unwrap_or(true);
            yarn.mscale = float("mscale");
            yarn.mscale_all_dim = float("mscale_all_dim");
            Scaling::Yarn(yarn)
        }
        "longrope" => Scaling::LongRope {
            short: floats("short_factor"),
            long: floats("long_factor"),
            original_context_length: original(),
            factor: float("factor").unwrap(),
            attention_factor: None,
        },
        other => panic!("{other} is no rope type"),
    };
    let rope = Rope {
        theta: float("rope_theta").unwrap() as f32,
        dims: size("head_dim").unwrap(),
        style: Style::Half,
        scaling,
    };
    let frequencies = arrays["out0"].to_f32_vec().unwrap();
    let scale = arrays["out1"].to_f32_vec().unwrap()[0];
    (rope, frequencies, scale, size("length").unwrap_or(0))
}

fn agrees(name: &str) {
    let (rope, frequencies, scale, length) = case(name);
    let turn = rope.turn(length);
    assert_eq!(turn.frequencies.len(), frequencies.len());
    for (i, (got, want)) in turn.frequencies.iter().zip(&frequencies).enumerate() {
        // A few roundings of f32: powf differs in its last place between libraries.
        assert!((got - want).abs() <= 1e-6 * want, "{name} {i}: {got} {want}");
    }
    assert!((turn.scale - f64::from(scale)).abs() < 1e-6, "{name}: {} {scale}", turn.scale);
}

#[test]
fn frequencies_are_those_of_transformers() {
    let names = [
        "default",
        "base_1000000",
        "linear",
        "llama3",
        "yarn",
        "yarn_betas",
        "yarn_mscale",
        "yarn_mscale_only",
        "yarn_untruncated",
    ];
    names.into_iter().for_each(agrees);
}

/// Factor 40 with both mscales 0.707 scales the softmax and not the angles; factor 4 without them
/// scales the angles and not the softmax.
#[test]
fn mscale_goes_to_the_softmax_only_with_mscale_all_dim() {
    let rope = |yarn: &Yarn| Rope {
        theta: 10_000.0,
        dims: 64,
        style: Style::Half,
        scaling: Scaling::Yarn(yarn.clone()),
    };
    let both = Yarn { mscale: Some(0.707), mscale_all_dim: Some(0.707), ..Yarn::new(40.0, 4096) };
    assert!((rope(&both).turn(0).scale - 1.0).abs() < 1e-9);
    assert!((both.softmax_factor() - 1.5896).abs() < 1e-4);
    let plain = Yarn::new(4.0, 4096);
    assert!((rope(&plain).turn(0).scale - 1.1386).abs() < 1e-4);
    assert_eq!(plain.softmax_factor(), 1.0);
}

#[test]
fn divisors_say_the_same_as_the_parameters_they_come_from() {
    let (scaled, frequencies, ..) = case("llama3");
    let plain = Rope { scaling: Scaling::None, ..scaled.clone() }.turn(0).frequencies;
    let divisors = plain.iter().zip(&frequencies).map(|(plain, f)| plain / f).collect();
    let turn = Rope { scaling: Scaling::Divisors(divisors), ..scaled }.turn(0);
    for (got, want) in turn.frequencies.iter().zip(&frequencies) {
        assert!((got - want).abs() <= 1e-6 * want);
    }
}

/// The slowest pair is stretched by the factor itself, the fastest least; the exponents of pair i are
/// `(2i + 2) / dims`, or `((i + 1) / (dims / 2)) ^ mixed`.
#[test]
fn fixed_ntk_stretches_from_the_fastest_to_the_slowest_pair() {
    for mixed in [None, Some(0.625), Some(1.0)] {
        let rope = |scaling| Rope { theta: 20_000.0, dims: 12, style: Style::Half, scaling };
        let plain = rope(Scaling::None).turn(0).frequencies;
        let turn = rope(Scaling::FixedNtk { factor: 8.0, mixed }).turn(0);
        for (i, (got, plain)) in turn.frequencies.iter().zip(&plain).enumerate() {
            let exponent = ((i + 1) as f32 / 6.0).powf(mixed.unwrap_or(1.0));
            let want = plain / 8f32.powf(exponent);
            assert!((got - want).abs() <= 2e-6 * want, "{mixed:?} {i}: {got} {want}");
        }
    }
}
