//! The runtime: a machine that models are loaded on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cyb_conformance::Suite;
use cyb_cpu::team::Team;
use cyb_exec::Backend;
use cyb_fasttext::FastText;

use crate::autotune::{self, Autotuned};
use crate::backends::{self, BackendInfo, Opened};
use crate::info::ModelInfo;
use crate::jets::{self, JetInfo};
use crate::library::{self, Entry};
use crate::load::LoadOptions;
use crate::model::{Model, ModelId};
use crate::package::PackageFile;
use crate::{BackendKind, CheckLine, Config, Error, MachineMemory, Package};

/// Threads, backends and the models folder. Dropping it frees what no [`Model`] holds any more.
#[derive(Debug)]
pub struct Runtime {
    config: Config,
    team: Arc<Team>,
    backends: Vec<Arc<dyn Backend>>,
    models_dir: Option<PathBuf>,
    loaded: Mutex<BTreeMap<ModelId, Model>>,
}

impl Runtime {
    /// Starts threads and opens backends.
    ///
    /// # Errors
    /// The backend asked for cannot be used here, or the threads cannot be had.
    pub fn new(mut config: Config) -> Result<Runtime, Error> {
        let threads = config.threads.unwrap_or_else(Team::default_count);
        if threads == 0 {
            return Err(Error::Value { what: "threads", why: "0; give 1 or more".to_owned() });
        }
        for (what, size) in [("chunk", config.chunk()), ("max_sequences", config.max_sequences)] {
            if size == 0 {
                return Err(Error::Value { what, why: "0; give 1 or more".to_owned() });
            }
        }
        let team = Team::new(threads)
            .map_err(|error| Error::Threads { threads, why: error.to_string() })?;
        let team = Arc::new(team);
        let Opened { backends, step_tokens } = config.backend.open(&team, &config)?;
        if let (Some(n @ 1..), Some(first)) = (config.gpu_layers, backends.first())
            && first.free_memory()?.is_none()
        {
            let why = match config.backend {
                BackendKind::Auto => backends::obstacle(BackendKind::Cuda, &team, &config),
                _ => None,
            };
            let why = why.unwrap_or_else(|| format!("the backend is {}", first.name()));
            let what = "gpu-layers";
            return Err(Error::Value { what, why: format!("{n} layers for a GPU, but {why}") });
        }
        config.chunk.get_or_insert(step_tokens);
        let models_dir = config.models_dir.clone().or_else(library::default_models_dir);
        Ok(Runtime { config, team, backends, models_dir, loaded: Mutex::default() })
    }

    /// The set-up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.team.count()
    }

    /// Every backend that there can be, with what this machine has.
    pub fn backends(&self) -> Vec<BackendInfo> {
        backends::survey(&self.team, self.backend())
    }

    /// The name of the backend that steps go to first: what `auto` has chosen.
    pub fn backend(&self) -> &'static str {
        self.backends.first().map_or("none", |backend| backend.name())
    }

    /// The backends in use, in order of preference.
    pub(crate) fn opened_backends(&self) -> &[Arc<dyn Backend>] {
        &self.backends
    }

    /// Memory of the machine.
    pub fn memory_stats(&self) -> MachineMemory {
        MachineMemory::now()
    }

    /// Every jet, with its hash and its kernels on the backends in use.
    ///
    /// # Errors
    /// A jet's definition cannot be built.
    pub fn jets(&self) -> Result<Vec<JetInfo>, Error> {
        jets::list(&self.backends)
    }

    /// Runs the conformance suite on the backends in use: every jet against its definition, with
    /// random inputs of this seed, and what backends promise besides. `only` names one jet or
    /// promise. Each line is handed over when it is done.
    ///
    /// # Errors
    /// Nothing has that name, or the backend cannot be opened a second time. What fails in a check is
    /// in its line.
    pub fn check_jets(
        &self,
        only: Option<&str>,
        seed: u64,
        tell: &mut dyn FnMut(&CheckLine),
    ) -> Result<(), Error> {
        let config = Config { batch_invariant: true, ..self.config.clone() };
        let invariant = self.config.backend.open(&self.team, &config)?.backends;
        let reference = [backends::processor(&self.team)];
        let own = self.backends.first().is_some_and(|first| first.name() == reference[0].name());
        let suite = Suite {
            backends: &self.backends,
            invariant: &invariant,
            reference: (!own).then_some(&reference),
            seed,
            only,
        };
        let names = Suite::names();
        if let Some(only) = only.filter(|only| !names.contains(only)) {
            let why = format!("there is no {only:?}; there are {}", names.join(", "));
            return Err(Error::Value { what: "check", why });
        }
        suite.run(tell);
        Ok(())
    }

    /// Times a text model's operations on every backend in use and keeps the times for this machine;
    /// the backend `auto` places layers by them. `tell` is told how many operations of all are done.
    ///
    /// # Errors
    /// There is no such model, it is an encoder, an operation fails, or the table cannot be written.
    pub fn autotune(
        &self,
        name: &str,
        tell: &mut dyn FnMut(usize, usize),
    ) -> Result<Autotuned, Error> {
        autotune::measure(&self.open(name)?, &self.backends, &self.config, tell)
    }

    /// As [`Runtime::autotune`], for a published shape: `llama-8b:q4_k`.
    ///
    /// # Errors
    /// As there, and as [`Runtime::synthetic`].
    pub fn autotune_synthetic(
        &self,
        spec: &str,
        tell: &mut dyn FnMut(usize, usize),
    ) -> Result<Autotuned, Error> {
        let package = Package::new(PackageFile::in_memory(spec, cyb_models::synthetic(spec)?))?;
        autotune::measure(&package, &self.backends, &self.config, tell)
    }

    /// The models folder, where one is set.
    pub fn models_dir(&self) -> Option<&Path> {
        self.models_dir.as_deref()
    }

    /// The models of the models folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn library(&self) -> Result<Vec<Entry>, Error> {
        self.models_dir.as_deref().map_or(Ok(Vec::new()), library::list)
    }

    /// Opens a model without preparing it: a path, or a name in the models folder.
    ///
    /// # Errors
    /// There is no such model, or its file is not what it should be.
    pub fn open(&self, name: &str) -> Result<Package, Error> {
        Package::open(&library::resolve(name, self.models_dir.as_deref())?)
    }

    /// A fastText classifier by path or name; `None` when the model is of another kind. It needs
    /// none of the runtime's threads: every caller may predict at the same time.
    ///
    /// # Errors
    /// There is no such model, or it is a damaged fastText file.
    pub fn fasttext(&self, name: &str) -> Result<Option<FastText>, Error> {
        let path = library::resolve(name, self.models_dir.as_deref())?;
        let mut magic = [0; 4];
        let head = std::fs::File::open(&path).and_then(|mut file| {
            use std::io::Read;
            file.read_exact(&mut magic)
        });
        // What cannot be read so is for the other formats to report.
        match head {
            Ok(()) if magic == cyb_fasttext::MAGIC => Ok(Some(FastText::open(&path)?)),
            _ => Ok(None),
        }
    }

    /// Loads a model: a path, or a name in the models folder.
    ///
    /// # Errors
    /// There is no such model, or it cannot run here.
    pub fn load(&self, name: &str) -> Result<Model, Error> {
        self.load_with(name, LoadOptions::default())
    }

    /// As [`Runtime::load`], with options.
    ///
    /// # Errors
    /// As [`Runtime::load`].
    pub fn load_with(&self, name: &str, options: LoadOptions) -> Result<Model, Error> {
        let start = std::time::Instant::now();
        let opened = PackageFile::open(&library::resolve(name, self.models_dir.as_deref())?)?;
        self.add(opened, options, start)
    }

    /// Loads a model of a published shape with random weights: `llama-8b:q4_k`.
    ///
    /// # Errors
    /// There is no such shape or format, or not enough memory.
    pub fn synthetic(&self, spec: &str) -> Result<Model, Error> {
        let start = std::time::Instant::now();
        let opened = PackageFile::in_memory(spec, cyb_models::synthetic(spec)?);
        self.add(opened, LoadOptions::default(), start)
    }

    fn add(
        &self,
        opened: PackageFile,
        options: LoadOptions,
        start: std::time::Instant,
    ) -> Result<Model, Error> {
        let mut loaded = self.loaded();
        let name = opened.name.clone();
        let mut id = ModelId(name.clone());
        for number in 2.. {
            if !loaded.contains_key(&id) {
                break;
            }
            id = ModelId(format!("{name}#{number}"));
        }
        let model =
            Model::prepare(id.clone(), opened, &self.backends, &self.config, options, start)?;
        loaded.insert(id, model.clone());
        Ok(model)
    }

    /// Forgets a model; its memory is free when its last handle is dropped.
    ///
    /// # Errors
    /// No such model is loaded.
    pub fn unload(&self, id: &ModelId) -> Result<(), Error> {
        self.loaded().remove(id).map(drop).ok_or_else(|| Error::NotLoaded(id.0.clone()))
    }

    /// What is loaded.
    pub fn list_models(&self) -> Vec<ModelInfo> {
        self.loaded().values().map(Model::info).collect()
    }

    /// Loads a model and only then forgets another: whoever asks for models in between gets one or
    /// the other.
    ///
    /// # Errors
    /// No such model is loaded, or the new one cannot be; the old one then stays.
    pub fn hot_swap(&self, old: &ModelId, name: &str) -> Result<Model, Error> {
        if !self.loaded().contains_key(old) {
            return Err(Error::NotLoaded(old.0.clone()));
        }
        let model = self.load(name)?;
        self.unload(old)?;
        Ok(model)
    }

    /// Forgets all models and ends the threads.
    pub fn shutdown(self) {}

    /// The map is whole whenever the lock is free, so a panic elsewhere does not matter.
    fn loaded(&self) -> MutexGuard<'_, BTreeMap<ModelId, Model>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
