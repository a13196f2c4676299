//! From the mean of a text's rows to scores of labels.
//!
//! Scores are added as logarithms of `p + 1e-5`, as the reference does, so that they agree with its
//! own to the last digits it prints.

use crate::matrix::Matrix;
use crate::{Problem, Scratch};

/// How a model's outputs become probabilities.
#[derive(Debug)]
pub(crate) enum Loss {
    /// A binary decision at each node on the way to a label: a node's two children, leaves first.
    Hierarchical(Vec<[u32; 2]>),
    Softmax,
    /// Each label by itself.
    Independent,
}

/// Logarithm of a probability that may be 0.
fn log(p: f32) -> f32 {
    (f64::from(p) + 1e-5).ln() as f32
}

impl Loss {
    pub(crate) fn new(number: i32, counts: &[i64]) -> Result<Loss, Problem> {
        match number {
            1 => Ok(Loss::Hierarchical(tree(counts))),
            2 | 4 => Ok(Loss::Independent),
            3 => Ok(Loss::Softmax),
            value => Err(Problem::Value {
                what: "the loss",
                value: value.into(),
                want: "which is not known",
            }),
        }
    }

    /// Rows that the output matrix must have.
    pub(crate) fn rows(&self, labels: usize) -> usize {
        match self {
            Loss::Hierarchical(_) => labels.saturating_sub(1),
            Loss::Softmax | Loss::Independent => labels,
        }
    }

    /// The `k` best labels of at least `threshold`, the best first: label and probability.
    pub(crate) fn best(
        &self,
        file: &[u8],
        output: &Matrix,
        labels: usize,
        [k, threshold]: [f32; 2],
        hidden: &[f32],
        scratch: &mut Scratch,
    ) -> Vec<(usize, f32)> {
        let k = k as usize;
        let mut best: Vec<(usize, f32)> = Vec::with_capacity(k.min(labels) + 1);
        let mut offer = |label: usize, score: f32| {
            let at = best.partition_point(|&(_, s)| s >= score);
            if at < k {
                best.insert(at, (label, score));
                best.truncate(k);
            }
            if best.len() == k { best[k - 1].1 } else { f32::NEG_INFINITY }
        };
        match self {
            Loss::Hierarchical(nodes) => {
                let least = log(threshold);
                let mut worst = f32::NEG_INFINITY;
                let stack = &mut scratch.stack;
                stack.clear();
                // The root was made last.
                stack.push(((labels + nodes.len()).saturating_sub(1) as u32, 0.0));
                while let Some((node, score)) = stack.pop() {
                    if score < least || score < worst {
                        continue;
                    }
                    let Some(inner) = (node as usize).checked_sub(labels) else {
                        worst = offer(node as usize, score);
                        continue;
                    };
                    let f = 1.0 / (1.0 + (-output.dot_row(file, inner, hidden)).exp());
                    let [left, right] = nodes[inner];
                    let (left, right) = ((left, score + log(1.0 - f)), (right, score + log(f)));
                    // The better side first: it cuts off more of the other.
                    match left.1 >= right.1 {
                        true => stack.extend([right, left]),
                        false => stack.extend([left, right]),
                    }
                }
            }
            Loss::Softmax => {
                let outputs = &mut scratch.outputs;
                outputs.clear();
                outputs.extend((0..labels).map(|i| output.dot_row(file, i, hidden)));
                let top = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                outputs.iter_mut().for_each(|v| *v = (*v - top).exp());
                let sum: f32 = outputs.iter().sum();
                for (i, v) in outputs.iter().enumerate().filter(|(_, v)| **v / sum >= threshold) {
                    offer(i, log(v / sum));
                }
            }
            Loss::Independent => {
                for i in 0..labels {
                    let p = sigmoid(output.dot_row(file, i, hidden));
                    if p >= threshold {
                        offer(i, log(p));
                    }
                }
            }
        }
        best.into_iter().map(|(label, score)| (label, score.exp().min(1.0))).collect()
    }
}

/// The reference looks these up in a table of 512 steps from -8 to 8.
fn sigmoid(x: f32) -> f32 {
    if x < -8.0 {
        return 0.0;
    }
    if x > 8.0 {
        return 1.0;
    }
    let step = ((x + 8.0) * 32.0).floor() / 32.0 - 8.0;
    1.0 / (1.0 + (-step).exp())
}

/// Huffman's tree of labels that are sorted by falling count: the children of each inner node.
fn tree(counts: &[i64]) -> Vec<[u32; 2]> {
    let labels = counts.len();
    // Heavier than any that was counted, so that a leaf comes before a node that is not made yet.
    const NOT_YET: i64 = 1_000_000_000_000_000;
    let mut weights: Vec<i64> = counts.to_vec();
    weights.resize((2 * labels).saturating_sub(1), NOT_YET);
    let mut nodes = Vec::with_capacity(labels.saturating_sub(1));
    let (mut leaf, mut node) = (labels, labels);
    for made in labels..weights.len() {
        let mut pick = || {
            let leaf_next = leaf > 0 && (node >= made || weights[leaf - 1] < weights[node]);
            if leaf_next {
                leaf -= 1;
                leaf
            } else {
                node += 1;
                node - 1
            }
        };
        let children = [pick(), pick()];
        weights[made] = weights[children[0]].saturating_add(weights[children[1]]);
        nodes.push(children.map(|child| child as u32));
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_every_label_once() {
        for counts in [vec![9, 5, 3, 1], vec![1; 7], vec![4], vec![-3, i64::MAX, 0, i64::MAX]] {
            let nodes = tree(&counts);
            assert_eq!(nodes.len(), counts.len() - 1);
            let mut seen: Vec<u32> = nodes.iter().flatten().copied().collect();
            seen.sort_unstable();
            let all: Vec<u32> = (0..2 * nodes.len() as u32).collect();
            assert_eq!(seen, all, "{counts:?}");
        }
        // The two rarest are deepest.
        assert_eq!(tree(&[9, 5, 3, 1]), [[3, 2], [4, 1], [5, 0]]);
    }
}
