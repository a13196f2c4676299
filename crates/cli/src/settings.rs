//! Options from the command line, the environment and the configuration file, in this order of
//! strength.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cyb_llm::{BackendKind, Compute, Config, DType, PARAMETERS, SamplingParams};

use crate::args::Common;
use crate::failure::Failure;

/// An option that can be set in all three places.
struct Known {
    name: &'static str,
    variable: &'static str,
    /// What holds when nobody says anything, for people.
    default: &'static str,
}

/// Every such option but the sampling parameters, which follow from their own table.
const KNOWN: &[Known] = &[
    Known { name: "threads", variable: "SOMA_THREADS", default: "what the machine allows" },
    Known { name: "backend", variable: "SOMA_BACKEND", default: "auto" },
    Known { name: "gpu-layers", variable: "SOMA_GPU_LAYERS", default: "all" },
    Known { name: "batch-invariant", variable: "SOMA_BATCH_INVARIANT", default: "false" },
    Known {
        name: "models",
        variable: "SOMA_MODELS",
        default: "soma/models in the user's data folder",
    },
    Known { name: "model", variable: "SOMA_MODEL", default: DEMO_MODEL },
    Known {
        name: "context",
        variable: "SOMA_CONTEXT",
        default: "what the prompt and the model ask for",
    },
    Known { name: "kv-type", variable: "SOMA_KV_TYPE", default: "f16" },
    Known { name: "compute", variable: "SOMA_COMPUTE", default: "f32" },
    Known { name: "preset", variable: "SOMA_PRESET", default: "none" },
];

/// The model that `cargo xtask models` fetches for the demo.
pub(crate) const DEMO_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

const FILE_VARIABLE: &str = "SOMA_CONFIG";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Variable(String),
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Flag => f.write_str("command line"),
            Origin::Variable(name) => write!(f, "environment variable {name}"),
            Origin::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What holds for one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    /// The value and where it comes from; `None` for the default.
    pub(crate) value: Option<(String, Origin)>,
    /// The default, for people.
    pub(crate) default: String,
}

/// All options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    all: Vec<Setting>,
    verbose: bool,
}

impl Settings {
    /// Collects the options. `flags` are those that the command line gave.
    pub(crate) fn collect(
        common: &Common,
        flags: &[(&str, Option<&str>)],
    ) -> Result<Settings, Failure> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let file = match (&common.config, variable(FILE_VARIABLE)) {
            (Some(path), _) => Some((path.clone(), true)),
            (None, Some(path)) => Some((PathBuf::from(path), true)),
            (None, None) => default_file().map(|path| (path, false)),
        };
        let mut in_file = match &file {
            Some((path, must_exist)) => read_file(path, *must_exist)?,
            None => BTreeMap::new(),
        };
        let given = [
            ("threads", common.threads.as_deref()),
            ("backend", common.backend.as_deref()),
            ("gpu-layers", common.gpu_layers.as_deref()),
            ("compute", common.compute.as_deref()),
            ("batch-invariant", common.batch_invariant.then_some("true")),
        ];
        let flags: BTreeMap<&str, &str> =
            given.iter().chain(flags).filter_map(|&(name, value)| Some((name, value?))).collect();
        let mut settings = Vec::new();
        for (name, variable_name, default) in names() {
            let from_variable = match variable(&variable_name).map(std::ffi::OsString::into_string)
            {
                None => None,
                Some(Ok(text)) => Some(text),
                Some(Err(_)) => {
                    return Err(Failure::work(format!(
                        "environment variable {variable_name} is not UTF-8; set it anew"
                    )));
                }
            };
            let from_file = in_file.remove(&name);
            let value = if let Some(text) = flags.get(name.as_str()) {
                Some(((*text).to_owned(), Origin::Flag))
            } else if let Some(text) = from_variable {
                Some((text, Origin::Variable(variable_name)))
            } else {
                let path = file.as_ref().map(|(path, _)| path.clone()).unwrap_or_default();
                from_file.map(|text| (text, Origin::File(path)))
            };
            settings.push(Setting { name, value, default });
        }
        if let (Some(unknown), Some((path, _))) = (in_file.keys().next(), &file) {
            let all: Vec<String> = names().map(|(name, ..)| name).collect();
            return Err(Failure::work(format!(
                "{}: there is no option {unknown:?}; there are {}",
                path.display(),
                all.join(", ")
            )));
        }
        Ok(Settings { all: settings, verbose: common.verbose })
    }

    pub(crate) fn all(&self) -> &[Setting] {
        &self.all
    }

    /// The value of an option and where it comes from.
    fn get(&self, name: &str) -> Option<(&str, &Origin)> {
        let setting = self.all.iter().find(|setting| setting.name == name)?;
        setting.value.as_ref().map(|(value, origin)| (value.as_str(), origin))
    }

    fn parsed<T>(
        &self,
        name: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, Failure> {
        let Some((text, origin)) = self.get(name) else { return Ok(None) };
        parse(text)
            .map(Some)
            .ok_or_else(|| wrong(origin, format!("{name} = {text:?} is not {wanted}")))
    }

    /// The set-up of the runtime.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let positive = |text: &str| text.parse::<usize>().ok().filter(|&n| n > 0);
        let backends = "a backend; there are auto, cpu, cuda, wgpu, metal, atoms";
        let kv_types = "a type for keys and values; there are f32, f16, bf16, q8_0, q4_0";
        let auto = Config::auto();
        Ok(Config {
            threads: self.parsed("threads", "a number of threads, 1 to 4096", |text| {
                positive(text).filter(|&n| n <= 4096)
            })?,
            backend: self
                .parsed("backend", backends, |text| text.parse::<BackendKind>().ok())?
                .unwrap_or_default(),
            gpu_layers: self
                .parsed("gpu-layers", "a number of layers", |text| text.parse().ok())?,
            batch_invariant: self
                .parsed("batch-invariant", "true or false", |text| text.parse().ok())?
                .unwrap_or(auto.batch_invariant),
            kv_type: self
                .parsed("kv-type", kv_types, |text| {
                    let dtype: DType = text.parse().ok()?;
                    let usable = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];
                    usable.contains(&dtype).then_some(dtype)
                })?
                .unwrap_or(auto.kv_type),
            compute: self
                .parsed("compute", "a type to compute in; there are f32, bf16 and f16", |text| {
                    match text {
                        "f32" => Some(Compute::F32),
                        "bf16" => Some(Compute::Bf16),
                        "f16" => Some(Compute::F16),
                        _ => None,
                    }
                })?
                .unwrap_or_default(),
            models_dir: self.get("models").map(|(text, _)| PathBuf::from(text)),
            context: self.parsed("context", "a number of tokens, 1 or more", positive)?,
            announce: (self.verbose || self.get("gpu-layers").is_some())
                .then_some(crate::plan::announce as fn(&[_])),
            cancel: crate::interrupt::cancel(),
            ..auto
        })
    }

    /// The set-up for comparisons with a reference: keys and values are not rounded unless somebody
    /// asks for it.
    pub(crate) fn exact_config(&self) -> Result<Config, Failure> {
        let config = self.config()?;
        let kv_type = if self.get("kv-type").is_some() { config.kv_type } else { DType::F32 };
        Ok(Config { kv_type, ..config })
    }

    /// The model to work on.
    pub(crate) fn model(&self) -> &str {
        self.get("model").map_or(DEMO_MODEL, |(name, _)| name)
    }

    /// How to sample. A preset replaces the defaults; where it is given on the command line it is
    /// stronger than single parameters from elsewhere.
    pub(crate) fn sampling(&self) -> Result<SamplingParams, Failure> {
        self.sampling_over(SamplingParams::default())
    }

    /// As [`Settings::sampling`], with other defaults.
    pub(crate) fn sampling_over(
        &self,
        defaults: SamplingParams,
    ) -> Result<SamplingParams, Failure> {
        let preset = self.get("preset");
        let mut params = match preset {
            Some((name, origin)) => {
                SamplingParams::preset(name).map_err(|error| wrong(origin, error.to_string()))?
            }
            None => defaults,
        };
        let only_flags = preset.is_some_and(|(_, origin)| *origin == Origin::Flag);
        for parameter in PARAMETERS {
            let name = parameter.name.replace('_', "-");
            if let Some((text, origin)) = self.get(&name)
                && !(only_flags && *origin != Origin::Flag)
            {
                params
                    .set(parameter.name, text)
                    .map_err(|error| wrong(origin, error.to_string()))?;
            }
        }
        Ok(params)
    }
}

/// A value that is wrong: a mistake on the command line, or elsewhere.
fn wrong(origin: &Origin, text: String) -> Failure {
    match origin {
        Origin::Flag => Failure::usage(text),
        Origin::Variable(_) | Origin::File(_) => Failure::work(format!("{origin}: {text}")),
    }
}

/// Names, variables and defaults of all options.
fn names() -> impl Iterator<Item = (String, String, String)> {
    let own = KNOWN
        .iter()
        .map(|known| (known.name.to_owned(), known.variable.to_owned(), known.default.to_owned()));
    let defaults = SamplingParams::default();
    let sampling = PARAMETERS.iter().filter(|parameter| is_scalar(parameter.name)).map(move |p| {
        let default = p.value(&defaults).unwrap_or_else(|| "none".to_owned());
        (p.name.replace('_', "-"), format!("SOMA_{}", p.name.to_uppercase()), default)
    });
    own.chain(sampling)
}

/// Parameters with several values, or that only make sense with a reader for them, are flags only.
fn is_scalar(parameter: &str) -> bool {
    !matches!(parameter, "stop" | "logit_bias" | "logprobs")
}

/// `$XDG_CONFIG_HOME/soma/config.toml`, else `~/.config/soma/config.toml`.
fn default_file() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("soma/config.toml"))
}

/// The options of a file as text; dashes and underscores are the same.
fn read_file(path: &Path, must_exist: bool) -> Result<BTreeMap<String, String>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => {
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(Failure::file("read", path, error)),
    };
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| Failure::work(format!("{}: {error}", path.display())))?;
    table
        .into_iter()
        .map(|(key, value)| {
            let text = match value {
                toml::Value::String(text) => text,
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(number) => number.to_string(),
                toml::Value::Boolean(flag) => flag.to_string(),
                toml::Value::Array(_) | toml::Value::Table(_) | toml::Value::Datetime(_) => {
                    return Err(Failure::work(format!(
                        "{}: {key} must be a text or a number",
                        path.display()
                    )));
                }
            };
            Ok((key.replace('_', "-"), text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, flags: &[(&str, Option<&str>)]) -> Result<Settings, Failure> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        Settings::collect(&Common { config: Some(path), ..Common::default() }, flags)
    }

    #[test]
    fn a_flag_is_stronger_than_the_file() {
        let settings =
            with_file("context = 77\nkv_type = \"f32\"\n", &[("context", Some("99"))]).unwrap();
        let config = settings.config().unwrap();
        assert_eq!((config.context, config.kv_type), (Some(99), DType::F32));
        let context = settings.all().iter().find(|setting| setting.name == "context").unwrap();
        assert_eq!(context.value, Some(("99".to_owned(), Origin::Flag)));
    }

    #[test]
    fn wrong_values_name_their_place() {
        for (text, part) in [
            ("context = 0", "context"),
            ("contxt = 1", "contxt"),
            ("backend = \"gpu\"", "gpu"),
            ("threads = [1]", "threads"),
            ("threads = ", "config.toml"),
        ] {
            let failure = with_file(text, &[]).and_then(|settings| settings.config()).unwrap_err();
            let message = failure.text();
            assert!(matches!(failure, Failure::Work(_)), "{text}");
            assert!(message.contains(part) && message.contains("config.toml"), "{message}");
        }
        let failure = with_file("", &[("temperature", Some("3"))]).unwrap().sampling().unwrap_err();
        assert!(matches!(failure, Failure::Usage(_)));
        assert!(failure.text().contains("0.0 to 2.0"), "{}", failure.text());
    }

    #[test]
    fn a_preset_on_the_command_line_is_stronger_than_the_file() {
        let settings = with_file("temperature = 0.3\n", &[("preset", Some("creative"))]).unwrap();
        assert_eq!(settings.sampling().unwrap().temperature, 1.0);
        let settings = with_file("temperature = 0.3\npreset = \"creative\"\n", &[]).unwrap();
        assert_eq!(settings.sampling().unwrap().temperature, 0.3);
    }
}
