//! How well a model predicts a text, computed as llama.cpp's `llama-perplexity` does.
//!
//! The text's tokens (with BOS where the model adds one) are cut into windows of `context` tokens;
//! a rest is left out. In each window the first token is replaced by BOS where the model adds one,
//! and the tokens after the first half are predicted, so that each has at least half a window
//! before it. The result is the exponential of the mean negative log-likelihood.

use cyb_text::EncodeOptions;

use crate::stepper::StepLimits;
use crate::{Error, Model, score};

/// A measured text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// The exponential of the mean negative log-likelihood.
    pub perplexity: f64,
    /// Tokens that were predicted.
    pub tokens: usize,
}

impl Model {
    /// The perplexity of a text at a window of `context` tokens. `progress` is told how many windows
    /// of how many are done.
    ///
    /// # Errors
    /// The text is shorter than two windows, or the window longer than the model's context.
    pub fn perplexity(
        &self,
        text: &str,
        context: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Perplexity, Error> {
        if context > self.context_length() {
            let (model, limit) = (self.id().to_string(), self.context_length());
            return Err(Error::ContextTooLong { model, asked: context, limit });
        }
        if context < 4 {
            let why = format!("{context}; a window needs at least 4 tokens");
            return Err(Error::Value { what: "context", why });
        }
        let mut ids =
            self.tokenize(text, EncodeOptions { add_special: true, parse_special: false })?;
        let need = 2 * context;
        if ids.len() < need {
            return Err(Error::TextTooShort { tokens: ids.len(), context, need });
        }
        let tokenizer = self.package().tokenizer()?;
        let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let block = self.kv_block();
        let blocks = context.div_ceil(block);
        let mut stepper = self.stepper(StepLimits {
            tokens: context.min(self.config().chunk()),
            sequences: 1,
            blocks,
            logits: 1,
            slots: blocks * block,
        })?;
        let first = context / 2;
        let windows = ids.len() / context;
        let (mut sum, mut count) = (0.0, 0);
        for (number, window) in ids.chunks_exact_mut(context).enumerate() {
            progress(number, windows);
            // The last token predicts nothing that is in the window.
            let last = context - 1;
            if let Some(bos) = bos {
                window[0] = bos;
            }
            let window = &window[..];
            let (chunk, cancel) = (self.config().chunk(), &self.config().cancel);
            score::run(
                &mut stepper,
                &window[..last],
                first,
                chunk,
                block,
                cancel,
                &mut |s, at, n| {
                    for row in 0..if at < first { 0 } else { n } {
                        sum += surprise(score::logits(s, row)?, window[at + row + 1]);
                        count += 1;
                    }
                    Ok(())
                },
            )?;
        }
        progress(windows, windows);
        Ok(Perplexity { perplexity: (sum / count as f64).exp(), tokens: count })
    }
}

/// The negative log-likelihood of a token.
fn surprise(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    sum.ln() - f64::from(logit - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_negative_log_of_the_softmax() {
        assert!((surprise(&[0.0, 0.0, 0.0, 0.0], 2) - 4f64.ln()).abs() < 1e-12);
        let p = 3f64.exp() / (3f64.exp() + 1f64.exp());
        assert!((surprise(&[3.0, 1.0], 0) + p.ln()).abs() < 1e-6);
    }
}
