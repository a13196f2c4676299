//! Running a model: its stages one after another, each imported when it is first needed.

use std::collections::HashMap;
use std::sync::Arc;

use cyb_formats::onnx::{Elem, Model};
use cyb_ir::{Fact, Graph, ValueId};
use cyb_tensor::{DType, Tensor};

use crate::context::Note;
use crate::error::OnnxError;
use crate::import::{End, Import, Register, Stage};
use crate::value::{Val, X};

/// Stages that may follow one stage and are kept; beyond that all are forgotten.
const MOST_FOLLOWERS: usize = 16;

/// What prepares graphs: a backend, or the interpreter.
pub trait Runner: Send + Sync {
    /// Makes a graph ready to run.
    ///
    /// # Errors
    /// The graph cannot run here, in one line.
    fn prepare(&self, graph: Graph) -> Result<Box<dyn Program>, String>;
}

/// A prepared graph.
pub trait Program: Send {
    /// The outputs for these inputs, both in the graph's order.
    ///
    /// # Errors
    /// The run fails, in one line.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String>;

    /// The steps and the time each took since [`Program::reset_times`], where it is known.
    fn times(&self) -> Vec<StepTime> {
        Vec::new()
    }

    /// Forgets the times of all steps.
    fn reset_times(&mut self) {}

    /// Which layers were made one when the graph was prepared, and which nearly were.
    fn notes(&self) -> Vec<Note> {
        Vec::new()
    }
}

/// What a step of a prepared graph is, and the time it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The jet or atom.
    pub op: &'static str,
    pub kernel: &'static str,
    /// The node of the file that it came from.
    pub node: String,
    pub calls: u64,
    pub nanos: u64,
}

/// What tells one follower of a stage from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Number(DType, Vec<usize>, Vec<u8>),
    Shapes(Vec<(DType, Vec<usize>)>),
}

/// A stage ready to run, with those that may follow.
pub(crate) struct Ready {
    program: Option<Box<dyn Program>>,
    feeds: Vec<usize>,
    registers: Vec<Register>,
    end: End,
    notes: Vec<Note>,
    followers: HashMap<Key, Ready>,
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("followers", &self.followers.len()).finish_non_exhaustive()
    }
}

impl Ready {
    fn new(stage: Stage, runner: &dyn Runner) -> Result<Ready, OnnxError> {
        let Stage { graph, feeds, registers, end, notes } = stage;
        let program = match graph.outputs.is_empty() {
            true => None,
            false => Some(runner.prepare(graph).map_err(OnnxError::Run)?),
        };
        Ok(Ready { program, feeds, registers, end, notes, followers: HashMap::new() })
    }

    /// The first stage of a model for inputs of these types and shapes.
    pub(crate) fn first(
        model: &Arc<Model>,
        inputs: &[(String, Elem)],
        facts: &[Fact],
        runner: &dyn Runner,
    ) -> Result<Ready, OnnxError> {
        Ready::new(Import::new(model, inputs).stage(facts)?, runner)
    }

    /// The steps of this stage and of all that follow.
    pub(crate) fn times(&self) -> Vec<StepTime> {
        let own = self.program.iter().flat_map(|program| program.times());
        own.chain(self.followers.values().flat_map(Ready::times)).collect()
    }

    /// What the import of this stage and of all that follow found.
    pub(crate) fn notes(&self) -> Vec<Note> {
        let prepared = self.program.iter().flat_map(|program| program.notes());
        let followers = self.followers.values().flat_map(Ready::notes);
        self.notes.iter().cloned().chain(prepared).chain(followers).collect()
    }

    pub(crate) fn reset_times(&mut self) {
        self.program.iter_mut().for_each(|program| program.reset_times());
        self.followers.values_mut().for_each(Ready::reset_times);
    }

    /// Runs this stage and all that follow.
    pub(crate) fn run(
        &mut self,
        registers: Vec<Tensor>,
        runner: &dyn Runner,
    ) -> Result<Vec<(String, Val, Option<Tensor>)>, OnnxError> {
        let mut stage = self;
        let mut registers = registers;
        loop {
            registers = stage.compute(&registers)?;
            let key = match &stage.end {
                End::Done(outputs) => {
                    let tensor = |val: &Val| match val {
                        Val::Value(x) => registers.get(x.id.index()).cloned(),
                        Val::Known { tensor, .. } => Some(tensor.clone()),
                        Val::Codes(codes) => codes.decoded().ok(),
                        Val::None | Val::Strings { .. } | Val::Sequence(_) => None,
                    };
                    let each = outputs.iter();
                    return Ok(each
                        .map(|(name, val)| (name.clone(), val.clone(), tensor(val)))
                        .collect());
                }
                End::Choose { register, .. } => {
                    let t = &registers[*register];
                    Key::Number(t.dtype(), t.shape().to_vec(), t.bytes().as_slice().to_vec())
                }
                End::Host { call, .. } => {
                    let inputs: Vec<Tensor> = call
                        .inputs
                        .iter()
                        .filter_map(|val| match val {
                            Val::Value(x) => registers.get(x.id.index()).cloned(),
                            Val::Known { tensor, .. } => Some(tensor.clone()),
                            Val::Codes(codes) => codes.decoded().ok(),
                            Val::None | Val::Strings { .. } | Val::Sequence(_) => None,
                        })
                        .collect();
                    let outputs = (call.run)(&inputs).map_err(OnnxError::Run)?;
                    let key = Key::Shapes(
                        outputs.iter().map(|(_, t)| (t.dtype(), t.shape().to_vec())).collect(),
                    );
                    stage.follow_host(&key, &outputs, &registers, runner)?;
                    registers.extend(outputs.into_iter().map(|(_, t)| t));
                    key
                }
            };
            if let (Key::Number(..), false) = (&key, stage.followers.contains_key(&key)) {
                stage.follow_number(&key, &registers, runner)?;
            }
            match stage.followers.get_mut(&key) {
                Some(next) => stage = next,
                None => return Err(OnnxError::Run("a stage has no follower".into())),
            }
        }
    }

    fn compute(&mut self, before: &[Tensor]) -> Result<Vec<Tensor>, OnnxError> {
        let outputs = match &mut self.program {
            Some(program) => {
                let inputs: Vec<Tensor> = self.feeds.iter().map(|&r| before[r].clone()).collect();
                program.run(&inputs).map_err(OnnxError::Run)?
            }
            None => Vec::new(),
        };
        Ok(self
            .registers
            .iter()
            .map(|r| match r {
                Register::Computed(i) => outputs[*i].clone(),
                Register::Kept(i) => before[*i].clone(),
            })
            .collect())
    }

    fn add(&mut self, key: Key, stage: Stage, runner: &dyn Runner) -> Result<(), OnnxError> {
        if self.followers.len() >= MOST_FOLLOWERS {
            self.followers.clear();
        }
        let ready = Ready::new(stage, runner)?;
        self.followers.insert(key, ready);
        Ok(())
    }

    fn follow_number(
        &mut self,
        key: &Key,
        registers: &[Tensor],
        runner: &dyn Runner,
    ) -> Result<(), OnnxError> {
        let End::Choose { register, rest } = &self.end else { return Ok(()) };
        let mut rest = rest.as_ref().clone();
        rest.decide(*register, &registers[*register]);
        let facts: Vec<Fact> = registers.iter().map(Fact::of).collect();
        let stage = rest.stage(&facts)?;
        self.add(key.clone(), stage, runner)
    }

    fn follow_host(
        &mut self,
        key: &Key,
        outputs: &[(Elem, Tensor)],
        registers: &[Tensor],
        runner: &dyn Runner,
    ) -> Result<(), OnnxError> {
        let End::Host { rest, .. } = &self.end else { return Ok(()) };
        if self.followers.contains_key(key) {
            return Ok(());
        }
        let mut rest = rest.as_ref().clone();
        let first = registers.len();
        let answer = outputs
            .iter()
            .enumerate()
            .map(|(i, (elem, _))| Val::Value(X { id: ValueId((first + i) as u32), elem: *elem }));
        rest.answer(answer.collect());
        let all = registers.iter().chain(outputs.iter().map(|(_, t)| t));
        let facts: Vec<Fact> = all.map(Fact::of).collect();
        let stage = rest.stage(&facts)?;
        self.add(key.clone(), stage, runner)
    }
}

/// Runs graphs by the definitions of their operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

struct Interpreted {
    prepared: cyb_interp::Prepared,
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Runner for Interpreter {
    fn prepare(&self, graph: Graph) -> Result<Box<dyn Program>, String> {
        let prepared = cyb_interp::Prepared::new(&graph).map_err(|e| e.to_string())?;
        let inputs = graph.inputs().map(|(name, _)| name.to_string()).collect();
        let outputs = graph.outputs.iter().map(|(name, _)| name.to_string()).collect();
        Ok(Box::new(Interpreted { prepared, inputs, outputs }))
    }
}

impl Program for Interpreted {
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let named = self.inputs.iter().cloned().zip(inputs.iter().cloned()).collect();
        let mut made = self
            .prepared
            .run(&cyb_tensor::Bindings::new(), &named, &mut Default::default())
            .map_err(|e| e.to_string())?;
        let each = self
            .outputs
            .iter()
            .map(|name| made.remove(name).ok_or_else(|| format!("output {name} was not computed")));
        each.collect()
    }
}
