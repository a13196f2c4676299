//! The test cases of the `onnx` package, one operator each, with and without kernels.
//!
//! The cases come out of the package itself. What fails is listed in docs/onnx.md, which
//! `UPDATE=1` writes anew.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use cyb_formats::onnx::{Attribute, Constant, Elem, Graph, Model, Node, Type, tensor_from_bytes};
use cyb_llm::{BackendKind, Config, DType, IndexMap, Runtime, Tensor};

const ONNX_VERSION: &str = "1.22.0";

/// As the package's own runner compares.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-6;

const FLOOR: f64 = 0.97;

/// A case: its model and the tensors of its data sets.
#[derive(Debug, Default)]
struct Case {
    name: String,
    model: Vec<u8>,
    /// Data set, then input or output, then number.
    data: BTreeMap<(String, bool, usize), Vec<u8>>,
}

fn read_cases() -> Vec<Case> {
    let wheel = cyb_zoo::wheel("onnx", ONNX_VERSION).expect("the onnx package can be fetched");
    let mut archive =
        zip::ZipArchive::new(File::open(wheel).expect("it is there")).expect("a wheel is a zip");
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    for i in 0..archive.len() {
        let mut member = archive.by_index(i).expect("members are numbered");
        let path = member.name().expect("names are text").into_owned();
        let Some(rest) = path.strip_prefix("onnx/backend/test/data/node/") else { continue };
        let parts: Vec<&str> = rest.split('/').collect();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).expect("a member can be read");
        let case = cases.entry(parts[0].to_owned()).or_default();
        case.name = parts[0].trim_start_matches("test_").to_owned();
        match parts[1..] {
            ["model.onnx"] => case.model = bytes,
            [set, file] => {
                let stem = file.strip_suffix(".pb").and_then(|f| f.rsplit_once('_'));
                let Some((kind, number)) = stem else { continue };
                let number = number.parse().expect("data are numbered");
                case.data.insert((set.to_owned(), kind == "input", number), bytes);
            }
            _ => {}
        }
    }
    cases.into_values().filter(|case| !case.model.is_empty()).collect()
}

/// Whether a case belongs to the domain: no training, sequences, optionals or strings, and the
/// default operator set only.
fn is_covered(model: &Model) -> bool {
    const LEFT_OUT: [&str; 9] = [
        "Sequence",
        "SplitToSequence",
        "ConcatFromSequence",
        "Optional",
        "String",
        "RegexFullMatch",
        "TfIdfVectorizer",
        "ImageDecoder",
        "LabelEncoder",
    ];
    fn nodes(graph: &Graph, check: &mut dyn FnMut(&Node) -> bool) -> bool {
        graph.nodes.iter().all(|node| {
            let inner = node.attributes.values().all(|a| match a {
                Attribute::Graph(graph) => nodes(graph, check),
                _ => true,
            });
            inner && check(node)
        })
    }
    let tensors = model.graph.inputs.iter().chain(&model.graph.outputs).all(|info| {
        let Type::Tensor { elem, .. } = &info.ty else { return false };
        *elem != Elem::Str
    });
    let default = nodes(&model.graph, &mut |node| {
        node.domain.is_empty() && !LEFT_OUT.iter().any(|prefix| node.op.starts_with(prefix))
    });
    tensors && default
}

fn numbers(t: &Tensor) -> Vec<f64> {
    fn wide<T: bytemuck::AnyBitPattern>(t: &Tensor, f: impl Fn(T) -> f64) -> Vec<f64> {
        t.to_vec::<T>(t.dtype()).expect("the dtype is matched").into_iter().map(f).collect()
    }
    match t.dtype() {
        DType::F64 => wide::<f64>(t, |x| x),
        DType::F32 => wide::<f32>(t, f64::from),
        DType::F16 => wide::<u16>(t, |x| half::f16::from_bits(x).to_f64()),
        DType::BF16 => wide::<u16>(t, |x| half::bf16::from_bits(x).to_f64()),
        DType::I64 => wide::<i64>(t, |x| x as f64),
        DType::U64 => wide::<u64>(t, |x| x as f64),
        DType::I32 => wide::<i32>(t, f64::from),
        DType::U32 => wide::<u32>(t, f64::from),
        DType::I16 => wide::<i16>(t, f64::from),
        DType::U16 => wide::<u16>(t, f64::from),
        DType::I8 => wide::<i8>(t, f64::from),
        _ => wide::<u8>(t, f64::from),
    }
}

fn compare(got: &Tensor, want: &Tensor) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (want.dtype(), want.shape()) {
        return Err(format!(
            "gives {}{:?}, not {}{:?}",
            got.dtype(),
            got.shape(),
            want.dtype(),
            want.shape()
        ));
    }
    let close = |g: f64, w: f64| {
        g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= ABSOLUTE + RELATIVE * w.abs()
    };
    let (got, want) = (numbers(got), numbers(want));
    let wrong: Vec<usize> = (0..got.len()).filter(|&i| !close(got[i], want[i])).collect();
    match wrong.first() {
        None => Ok(()),
        Some(&i) => Err(format!(
            "{} of {} numbers differ, such as {} for {}",
            wrong.len(),
            got.len(),
            got[i],
            want[i]
        )),
    }
}

fn tensor(bytes: &[u8]) -> Result<Tensor, String> {
    match tensor_from_bytes(bytes).map_err(|e| e.to_string())? {
        Constant::Tensor { tensor, .. } => Ok(tensor),
        Constant::Strings { .. } => Err("its data are strings".to_owned()),
    }
}

fn run(runtime: &Runtime, case: &Case) -> Result<(), String> {
    let model =
        runtime.onnx_from_bytes(&case.name, case.model.clone(), None).map_err(|e| e.to_string())?;
    let mut sets: Vec<&String> = case.data.keys().map(|(set, ..)| set).collect();
    sets.dedup();
    for set in sets {
        let side =
            |input: bool| case.data.iter().filter(move |((s, i, _), _)| s == set && *i == input);
        let mut inputs = IndexMap::new();
        for ((_, _, number), bytes) in side(true) {
            let port = model.inputs().get(*number).ok_or("there are too many inputs")?;
            inputs.insert(port.name.clone(), tensor(bytes)?);
        }
        let outputs = model.run(&inputs).map_err(|e| e.to_string())?;
        for ((_, _, number), bytes) in side(false) {
            let port = model.outputs().get(*number).ok_or("there are too many outputs")?;
            let got = outputs.get(&port.name).ok_or("an output is missing")?;
            compare(got, &tensor(bytes)?).map_err(|why| format!("output {number} {why}"))?;
        }
    }
    Ok(())
}

/// Names and reasons of the cases that fail, and how many there are in all.
fn failures(backend: BackendKind, cases: &[Case]) -> BTreeMap<String, String> {
    let config = Config { backend, threads: Some(1), ..Config::auto() };
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let run_some = || {
        let runtime = Runtime::new(config.clone()).expect("a runtime starts");
        let mut failed = BTreeMap::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&runtime, case)));
            match caught {
                Ok(Ok(())) => {}
                Ok(Err(why)) => drop(failed.insert(case.name.clone(), why)),
                Err(_) => panic!("{} panics", case.name),
            }
        }
        failed
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..workers).map(|_| scope.spawn(run_some)).collect();
        all.into_iter().flat_map(|t| t.join().expect("a case panics")).collect()
    })
}

const BEGIN: &str = "<!-- written by crates/llm/tests/onnx_nodes.rs -->\n";
const END: &str = "<!-- end -->\n";

fn report(n: usize, atoms: &BTreeMap<String, String>, cpu: &BTreeMap<String, String>) -> String {
    let mut text = format!(
        "{} of {n} cases pass without kernels, {} with those of the CPU. The others:\n\n\
         | case | backend | why |\n|---|---|---|\n",
        n - atoms.len(),
        n - cpu.len()
    );
    let names: std::collections::BTreeSet<&String> = atoms.keys().chain(cpu.keys()).collect();
    for name in names {
        let (on, why) = match (atoms.get(name), cpu.get(name)) {
            (Some(why), Some(_)) => ("both", why),
            (Some(why), None) => ("atoms", why),
            (None, Some(why)) => ("cpu", why),
            (None, None) => continue,
        };
        let why = why.replace('|', "\\|");
        text.push_str(&format!("| {name} | {on} | {why} |\n"));
    }
    text
}

#[test]
fn node_cases_of_the_onnx_package() {
    let all = read_cases();
    assert!(all.len() > 1500, "the package holds {} cases", all.len());
    let cases: Vec<Case> = all
        .into_iter()
        .filter(|case| {
            Model::from_bytes(case.model.clone(), None).is_ok_and(|model| is_covered(&model))
        })
        .collect();
    let atoms = failures(BackendKind::Atoms, &cases);
    let cpu = failures(BackendKind::Cpu, &cases);
    let n = cases.len();
    let text = report(n, &atoms, &cpu);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    if std::env::var_os("UPDATE").is_some() {
        let page = std::fs::read_to_string(&path).expect("docs/onnx.md is there");
        let (head, rest) = page.split_once(BEGIN).expect("the page has the mark");
        let (_, tail) = rest.split_once(END).expect("the page has the end mark");
        std::fs::write(&path, format!("{head}{BEGIN}{text}{END}{tail}")).expect("it is written");
    }
    for (backend, failed) in [("atoms", &atoms), ("cpu", &cpu)] {
        let share = (n - failed.len()) as f64 / n as f64;
        assert!(share >= FLOOR, "{backend}: {:.1} % of {n} pass\n{text}", share * 100.0);
    }
}
