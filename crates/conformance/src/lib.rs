//! The conformance suite: every case of every jet on some backends against its definition, with fresh
//! random inputs, and what backends promise besides. It is part of the program (`soma-runtime jets
//! --check`), because a device can only be checked where it is.
//!
//! The suite knows no backend. What runs on the first of those it is given is what is checked; what
//! that one has no kernel for runs on those behind it, and is counted as such.

#![forbid(unsafe_code)]

mod call;
mod choices;
mod jets;
mod layers;
mod products;
mod random;

use std::sync::Arc;

use cyb_exec::{Backend, ExecError};
use cyb_interp::InterpError;
use cyb_ir::IrError;
use cyb_tensor::TensorError;
use cyb_tensor::quant::QuantError;

/// What is checked, and how.
#[derive(Clone, Copy, Debug)]
pub struct Suite<'a> {
    /// In order of preference; the first one is the one in question.
    pub backends: &'a [Arc<dyn Backend>],
    /// The same, set up so that bits do not depend on how many tokens share a step.
    pub invariant: &'a [Arc<dyn Backend>],
    /// What whole layers are compared with, where that is another backend.
    pub reference: Option<&'a [Arc<dyn Backend>]>,
    /// Of the random inputs.
    pub seed: u64,
    /// The only one of [`Suite::names`] that is wanted.
    pub only: Option<&'a str>,
}

/// What came of one jet, or of one promise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The jet, or the promise.
    pub name: String,
    /// How often it was checked.
    pub cases: usize,
    /// How many of the cases ran on the first backend and nowhere else.
    pub on_first: usize,
    /// The largest difference from the definition, in units of what the jet allows.
    pub worst: f32,
    /// What went wrong, by case.
    pub failures: Vec<String>,
}

impl Line {
    fn new(name: &str) -> Line {
        Line { name: name.to_owned(), ..Line::default() }
    }

    fn check(&mut self, what: &str, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(format!("{what}: {}", why()));
        }
    }

    /// Notes a difference in units of what is allowed.
    fn check_near(&mut self, what: &str, bad: f32) {
        self.worst = self.worst.max(bad);
        self.check(what, bad <= 1.0, || format!("{bad} times what is allowed"));
    }
}

/// A case that could not be made or run.
#[derive(Debug, thiserror::Error)]
enum CaseError {
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Interp(#[from] InterpError),
    #[error(transparent)]
    Ir(#[from] IrError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error(transparent)]
    Quant(#[from] QuantError),
    #[error("{0}")]
    Other(String),
}

/// Fills a line.
type Check = fn(&Suite<'_>, &mut Line);

/// What is checked besides jets.
const PROMISES: [(&str, Check); 3] =
    [("products", products::check), ("layers", layers::check), ("choices", choices::check)];

impl Suite<'_> {
    /// What [`Suite::only`] can be.
    pub fn names() -> Vec<&'static str> {
        let jets = cyb_jets::JETS.iter().map(|jet| jet.name);
        jets.chain(PROMISES.map(|(name, _)| name)).collect()
    }

    /// Checks, and hands over each line when it is done.
    pub fn run(&self, tell: &mut dyn FnMut(&Line)) {
        for jet in cyb_jets::JETS.iter().filter(|jet| self.wants(jet.name)) {
            tell(&jets::check(self, jet));
        }
        for (name, check) in PROMISES.into_iter().filter(|(name, _)| self.wants(name)) {
            let mut line = Line::new(name);
            check(self, &mut line);
            tell(&line);
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_none_or(|only| only == name)
    }

    /// The name of the backend in question.
    fn first(&self) -> &'static str {
        self.backends.first().map_or("none", |backend| backend.name())
    }
}

/// Runs a case; what hinders it is a failure.
fn case(line: &mut Line, what: &str, run: impl FnOnce(&mut Line) -> Result<(), CaseError>) {
    line.cases += 1;
    if let Err(error) = run(line) {
        line.failures.push(format!("{what}: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use cyb_cpu::CpuBackend;
    use cyb_cpu::team::Team;
    use cyb_exec::{Call, Kernel, PlanMode, Program};
    use cyb_ir::Graph;

    use super::*;

    fn cpu() -> Arc<dyn Backend> {
        Arc::new(CpuBackend::new(Arc::new(Team::new(2).unwrap())))
    }

    fn lines(backends: &[Arc<dyn Backend>], only: &str) -> Vec<Line> {
        let reference = [cpu()];
        let suite = Suite {
            backends,
            invariant: backends,
            reference: Some(&reference),
            seed: 11,
            only: Some(only),
        };
        let mut lines = Vec::new();
        suite.run(&mut |line| lines.push(line.clone()));
        lines
    }

    #[test]
    fn the_processor_keeps_its_promises() {
        for only in ["rmsnorm", "rope", "linear_add", "choices"] {
            let lines = lines(&[cpu()], only);
            let [line] = &lines[..] else { panic!("{lines:?}") };
            assert_eq!(line.failures, [""; 0], "{only}");
            assert!(line.cases > 0);
        }
    }

    /// The processor, with `tanh` for what is asked of `sigmoid` and no answer to `rope`.
    #[derive(Debug)]
    struct Broken(Arc<dyn Backend>);

    impl Backend for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }

        fn device(&self) -> String {
            String::new()
        }

        fn kernel(&self, call: &Call<'_>) -> Option<Kernel> {
            self.0.kernel(call)
        }

        fn runs_atoms(&self) -> bool {
            true
        }

        fn prepare(&self, graph: Graph, mode: PlanMode) -> Result<Box<dyn Program>, ExecError> {
            let mut graph = graph;
            for node in &mut graph.nodes {
                match node.op.name() {
                    "rope" => {
                        return Err(ExecError::Step { step: "rope".into(), why: "broken".into() });
                    }
                    "sigmoid" => {
                        node.op = cyb_ir::Op::Jet(&cyb_jets::TANH, cyb_ir::Attrs::new());
                    }
                    _ => {}
                }
            }
            self.0.prepare(graph, mode)
        }
    }

    #[test]
    fn what_is_wrong_is_found() {
        let broken: [Arc<dyn Backend>; 1] = [Arc::new(Broken(cpu()))];
        let line = &lines(&broken, "sigmoid")[0];
        assert!(line.worst > 1.0 && !line.failures.is_empty(), "{line:?}");
        let line = &lines(&broken, "rope")[0];
        assert_eq!(line.failures.len(), line.cases);
        assert!(line.failures[0].contains("broken"), "{line:?}");
        assert_eq!(lines(&broken, "tanh")[0].failures, [""; 0]);
    }
}
