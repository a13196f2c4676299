//! What of a model goes where, for people and as JSON.

use cyb_llm::Share;
use serde_json::json;

use crate::output::{self, bytes};

/// Parts outside layers that a line names.
const SHOWN: usize = 4;

/// Says it on stderr where a device with memory of its own takes part.
pub(crate) fn announce(shares: &[Share]) {
    if shares.iter().any(|share| share.free.is_some()) {
        lines(shares).iter().for_each(|line| output::note(format_args!("plan: {line}")));
    }
}

/// A line for each backend.
pub(crate) fn lines(shares: &[Share]) -> Vec<String> {
    shares.iter().map(line).collect()
}

fn line(share: &Share) -> String {
    let parts = if share.partly { "parts of " } else { "" };
    let mut what: Vec<String> = Vec::new();
    what.extend(share.layers.map(|(first, last)| match first == last {
        true => format!("{parts}layer {first} of {}", share.n_layers),
        false => format!("{parts}layers {first} to {last} of {}", share.n_layers),
    }));
    what.extend(share.others.iter().take(SHOWN).cloned());
    if share.others.len() > SHOWN {
        what.push(format!("{} more", share.others.len() - SHOWN));
    }
    let layout = match share.free {
        Some(_) => ", laid out anew",
        None => " as in the file",
    };
    let free = share.free.map_or(String::new(), |n| format!("; {} free", bytes(n as u64)));
    format!(
        "{} on {} ({}): {} of weights{layout}, {} of keys and values, about {} of intermediate \
         results{free}",
        what.join(", "),
        share.backend,
        share.device,
        bytes(share.weights as u64),
        bytes(share.states as u64),
        bytes(share.arena as u64),
    )
}

pub(crate) fn as_json(shares: &[Share]) -> serde_json::Value {
    let each = shares.iter().map(|share| {
        json!({
            "backend": share.backend,
            "device": share.device,
            "layers": share.layers.map(|(first, last)| [first, last]),
            "partly": share.partly,
            "n_layers": share.n_layers,
            "others": share.others,
            "weights": share.weights,
            "states": share.states,
            "arena": share.arena,
            "free": share.free,
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_line_a_backend() {
        let share = Share {
            backend: "cuda",
            device: "NVIDIA H200".into(),
            layers: Some((0, 9)),
            partly: false,
            n_layers: 30,
            others: vec!["token_embd".into()],
            weights: 3 << 30,
            states: 12 << 20,
            arena: 1 << 20,
            free: Some(100 << 30),
        };
        let want = "layers 0 to 9 of 30, token_embd on cuda (NVIDIA H200): 3.00 GiB of weights, laid \
                    out anew, 12.0 MiB of keys and values, about 1.00 MiB of intermediate results; \
                    100 GiB free";
        assert_eq!(lines(std::slice::from_ref(&share)), [want]);
        let json = as_json(&[share]);
        assert_eq!((&json[0]["layers"][1], &json[0]["free"]), (&json!(9), &json!(100u64 << 30)));
    }
}
