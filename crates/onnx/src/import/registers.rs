//! The end of a stage: values that are still needed become registers.

use std::collections::{HashMap, HashSet};

use cyb_ir::ValueId;

use super::{Build, End, Import, Register, Stage};
use crate::error::HostCall;
use crate::value::Val;

impl Import {
    /// Ends a stage: run-time values that are still needed become registers.
    pub(super) fn cut(mut self, build: Build, waiting: Waiting) -> Stage {
        let mut inner = HashSet::new();
        for frame in self.frames.iter_mut().rev() {
            inner = frame.forget(&inner);
        }
        let mut out = Registers::new(build);
        for frame in &mut self.frames {
            frame.visit(&mut |val| out.keep(val));
        }
        let rest = Box::new(self);
        let end = match waiting {
            Waiting::Number(id) => End::Choose { register: out.register(id), rest },
            Waiting::Host(mut call) => {
                call.inputs.iter_mut().for_each(|v| v.visit(&mut |val| out.keep(val)));
                End::Host { call, rest }
            }
        };
        out.stage(end)
    }
}

pub(super) enum Waiting {
    Number(ValueId),
    Host(HostCall),
}

/// The values that leave a stage.
struct Registers {
    build: Build,
    outputs: Vec<ValueId>,
    from: Vec<Register>,
    number: HashMap<ValueId, usize>,
}

impl Registers {
    fn new(build: Build) -> Registers {
        Registers { build, outputs: Vec::new(), from: Vec::new(), number: HashMap::new() }
    }

    fn register(&mut self, id: ValueId) -> usize {
        if let Some(&n) = self.number.get(&id) {
            return n;
        }
        let kept = self.build.feeds.iter().find(|(_, input)| *input == id);
        self.from.push(match kept {
            Some((register, _)) => Register::Kept(*register),
            None => {
                self.outputs.push(id);
                Register::Computed(self.outputs.len() - 1)
            }
        });
        self.number.insert(id, self.from.len() - 1);
        self.from.len() - 1
    }

    /// Turns a value of the graph into a register, or into a tensor when it is a constant.
    fn keep(&mut self, val: &mut Val) {
        let Val::Value(x) = val else { return };
        if let Some(tensor) = self.build.b.graph().tensor(x.id) {
            *val = Val::Known { elem: x.elem, tensor: tensor.clone() };
            return;
        }
        x.id = ValueId(self.register(x.id) as u32);
    }

    fn stage(self, end: End) -> Stage {
        let feeds = self.build.feeds.iter().map(|(register, _)| *register).collect();
        let notes = self.build.notes;
        let mut graph = self.build.b.finish();
        for (i, id) in self.outputs.iter().enumerate() {
            graph.outputs.push((format!("o{i}").into(), *id));
        }
        Stage { graph, feeds, registers: self.from, end, notes }
    }
}

pub(super) fn finish(build: Build, mut outputs: Vec<(String, Val)>) -> Stage {
    let mut out = Registers::new(build);
    outputs.iter_mut().for_each(|(_, val)| val.visit(&mut |v| out.keep(v)));
    out.stage(End::Done(outputs))
}
