//! The compiled kernels: PTX made ahead of time from `kernels/*.cu` by `cargo xtask kernels`,
//! committed and part of the program. The driver compiles a module for the GPU when it is first
//! used, and keeps the result on disk.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::{CudaError, Function, Gpu, Module};

/// A module's packed PTX: for any GPU from Ampere on, and for Hopper with its own instructions.
struct Compiled {
    name: &'static str,
    base: Option<&'static [u8]>,
    hopper: &'static [u8],
}

macro_rules! ptx {
    ($name:literal $arch:literal) => {
        include_bytes!(concat!("../ptx/", $name, ".", $arch, ".ptx.gz"))
    };
}

macro_rules! compiled {
    (any: $($any:literal)* hopper: $($hopper:literal)*) => {
        &[
            $(Compiled { name: $any, base: Some(ptx!($any "80")), hopper: ptx!($any "90a") },)*
            $(Compiled { name: $hopper, base: None, hopper: ptx!($hopper "90a") },)*
        ]
    };
}

/// The modules of `kernels/modules.txt`.
static COMPILED: &[Compiled] = compiled! {
    any: "activations" "elementwise" "attention" "decode" "prefill" "encoder" "sampling"
        "linear_q4_0" "linear_q4_1" "linear_q5_0" "linear_q5_1" "linear_q8_0"
        "linear_q4_k" "linear_q5_k" "linear_q6_k"
        "linear_g32" "linear_g16" "linear_g32m" "linear_g16m" "linear_half" "linear_float"
    hopper: "dense" "wide_q4_0" "wide_q4_1" "wide_q5_0" "wide_q5_1" "wide_q8_0"
        "wide_q4_k" "wide_q5_k" "wide_q6_k"
        "wide_g32" "wide_g16" "wide_g32m" "wide_g16m" "wide_half" "wide_float"
};

/// The modules of a GPU, loaded as they are asked for.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<&'static str, Module>>,
}

impl std::fmt::Debug for Modules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Modules")
    }
}

impl Modules {
    /// Kernel `function` of module `name`.
    pub(crate) fn get(
        &self,
        gpu: &Arc<Gpu>,
        name: &'static str,
        function: &str,
    ) -> Result<Function, CudaError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = loaded.get(name) {
            return module.function(function);
        }
        let row = COMPILED.iter().find(|c| c.name == name);
        let row = row.ok_or_else(|| fail(name, "is not among the compiled modules"))?;
        let packed = if gpu.is_hopper() { Some(row.hopper) } else { row.base };
        let packed = packed.ok_or_else(|| fail(name, "is for Hopper only"))?;
        let module = gpu.module(unpack(packed).map_err(|e| fail(name, &e.to_string()))?)?;
        loaded.insert(name, module);
        module.function(function)
    }
}

fn fail(name: &str, why: &str) -> CudaError {
    CudaError::Call { call: "kernels", why: format!("{name} {why}") }
}

fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut ptx = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut ptx)?;
    Ok(ptx)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::*;

    /// The hash that `kernels/compile.py` writes into a module's first line.
    fn hash(folder: &Path, source: &str, options: &[&str]) -> String {
        let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
        let names: BTreeSet<String> = names.map(|n| n.into_string().unwrap()).collect();
        let headers = names.iter().filter(|n| n.ends_with(".cuh")).map(String::as_str);
        let mut all = Sha256::new();
        for file in ["compile.py"].into_iter().chain(headers).chain([source]) {
            all.update(std::fs::read(folder.join(file)).unwrap());
        }
        all.update(options.join(" "));
        all.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn ptx_is_of_its_sources() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let list = std::fs::read_to_string(folder.join("modules.txt")).unwrap();
        let mut listed = BTreeSet::new();
        for line in list.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, source, options) = (words[0], words[1], &words[3..]);
            let row = COMPILED.iter().find(|c| c.name == name);
            let row = row.unwrap_or_else(|| panic!("{name} is not part of the program"));
            for arch in words[2].split(',') {
                let packed = if arch == "80" { row.base.unwrap() } else { row.hopper };
                let ptx = String::from_utf8(unpack(packed).unwrap()).unwrap();
                let mut with_arch = vec![arch];
                with_arch.extend(options);
                let want = format!("// {}", hash(&folder, source, &with_arch));
                assert_eq!(
                    ptx.lines().next().unwrap(),
                    want,
                    "{name} for {arch} is not what {source} says: run `cargo xtask kernels`"
                );
                assert!(ptx.contains(&format!(".target sm_{arch}")), "{name} {arch}");
            }
            listed.insert(name);
        }
        let embedded: BTreeSet<&str> = COMPILED.iter().map(|c| c.name).collect();
        assert_eq!(embedded, listed);
    }

    /// Two blocks of 16-bit weights with 4096 columns fill a multiprocessor's 228 KiB with this; with
    /// more there would be one, which decodes a seventh slower.
    #[test]
    fn products_of_one_row_take_a_kilobyte_of_static_memory() {
        for row in COMPILED.iter().filter(|c| c.name.starts_with("linear_")) {
            let ptx = String::from_utf8(unpack(row.hopper).unwrap()).unwrap();
            let sizes = ptx.lines().filter_map(|line| {
                let own = line.trim().strip_prefix(".shared ")?;
                let (_, size) = own.split_once("product_1E")?.1.split_once('[')?;
                size.strip_suffix("];")?.parse::<usize>().ok()
            });
            let bytes: usize = sizes.sum();
            assert!((1..=1024).contains(&bytes), "{}: {bytes} bytes", row.name);
        }
    }
}
