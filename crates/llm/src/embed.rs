//! Texts as vectors, and texts as scores: what encoders are for.

use std::ops::Range;

use cyb_models::{EncoderInfo, Head, Scores};
use cyb_text::PairOptions;

use crate::encoder::{EncoderRunner, Outputs, Sequence, Wanted};
use crate::sentence::Stages;
use crate::{Error, Model, Package};

/// How texts are read for an encoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Cut a text that is too long instead of failing.
    pub truncate: bool,
}

/// What an encoder's head is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Vectors of texts: [`Model::embed`].
    Embed,
    /// Scores of texts: [`Model::classify`].
    Classify,
    /// Labels of tokens: [`Model::classify_tokens`].
    ClassifyTokens,
    /// Words for gaps, or what comes next, through [`Model::forward`].
    Words,
}

/// A label and its score.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The label's name in the model's configuration.
    pub label: String,
    /// Its probability, or whatever the model's configuration makes of its logit.
    pub score: f32,
}

/// What a model says of one token of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLabel {
    /// The token as the vocabulary spells it.
    pub token: String,
    /// The most probable label.
    pub label: String,
    /// Its probability.
    pub score: f32,
    /// Characters of the text that the token was read from.
    pub span: Range<usize>,
}

/// How [`Model::classify_by`] asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroShot {
    /// The statement that a label makes of a text; `{}` stands for the label.
    pub hypothesis: String,
    /// Score each label by itself instead of against the others.
    pub multi_label: bool,
}

impl Default for ZeroShot {
    fn default() -> ZeroShot {
        ZeroShot { hypothesis: "This example is {}.".to_owned(), multi_label: false }
    }
}

impl Model {
    /// The vectors of texts, as sentence-transformers makes them: pooled and normalized as the
    /// model's own `modules.json` says, by the mean without one. A text's vector does not depend on
    /// the other texts. A decoder without stages of its own must be loaded for it
    /// ([`crate::Purpose::Sequences`]).
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cyb_llm::Error> {
    /// let runtime = cyb_llm::Runtime::new(cyb_llm::Config::auto())?;
    /// let model = runtime.load("all-MiniLM-L6-v2")?;
    /// let vectors = model.embed(&["A cat sleeps.", "Ein Hund bellt."], Default::default())?;
    /// assert_eq!(vectors.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A text is longer than the model takes (unless it may be cut), or the model gives no hidden
    /// states.
    pub fn embed(&self, texts: &[&str], options: TextOptions) -> Result<Vec<Vec<f32>>, Error> {
        let (info, runner) = self.encoder().ok_or_else(|| Error::Value {
            what: "model",
            why: format!(
                "{} was loaded to write text; load it for whole sequences (LoadOptions.purpose)",
                self.package().name()
            ),
        })?;
        // A graph that makes vectors itself leaves nothing to pool.
        let made = info.embeds > 0;
        let width = if made { info.embeds } else { self.summary().hidden_size };
        let stages = Stages::read(&self.package().file, width, made)?;
        let limit = self.text_limit(Some(&stages))?;
        let sequences = texts.iter().map(|text| {
            let text = stages.prepare(text);
            sequence(self.package(), &text, None, limit, options, info)
        });
        let sequences = sequences.collect::<Result<Vec<_>, Error>>()?;
        let mut vectors = vec![Vec::new(); texts.len()];
        let wanted = Wanted { hidden: !made, embeds: made, ..Wanted::default() };
        let mut runner = runner.lock().map_err(|_| Error::Poisoned)?;
        runner.run(&sequences, info, wanted, &self.config().cancel, &mut |i, out| {
            vectors[i] = stages.apply(if made { out.embeds } else { out.hidden }, width);
            Ok(())
        })?;
        Ok(vectors)
    }

    /// Scores of every label of a classifier for each text or pair of texts, the best first.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cyb_llm::Error> {
    /// let runtime = cyb_llm::Runtime::new(cyb_llm::Config::auto())?;
    /// let model = runtime.load("distilbert-base-uncased-finetuned-sst-2-english")?;
    /// let texts = [("What a day!", None), ("It rains again.", None)];
    /// for scores in model.classify(&texts, Default::default())? {
    ///     println!("{} {:.3}", scores[0].label, scores[0].score);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model is no classifier of whole texts, or a text is longer than it takes.
    pub fn classify(
        &self,
        texts: &[(&str, Option<&str>)],
        options: TextOptions,
    ) -> Result<Vec<Vec<Scored>>, Error> {
        let (info, _) = self.classifier(Head::Sequence)?;
        let mut all = Vec::with_capacity(texts.len());
        self.logits_of(texts, options, &mut |logits| {
            let scores = scores(info.scores, logits);
            let mut scored: Vec<Scored> = info
                .labels
                .iter()
                .zip(scores)
                .map(|(label, score)| Scored { label: label.clone(), score })
                .collect();
            scored.sort_by(|a, b| b.score.total_cmp(&a.score));
            all.push(scored);
        })?;
        Ok(all)
    }

    /// The label of every token of each text, without those that the model puts around it.
    ///
    /// # Errors
    /// The model is no classifier of tokens, or a text is longer than it takes.
    pub fn classify_tokens(
        &self,
        texts: &[&str],
        options: TextOptions,
    ) -> Result<Vec<Vec<TokenLabel>>, Error> {
        let (info, runner) = self.classifier(Head::Token)?;
        let limit = self.text_limit(None)?;
        let package = self.package();
        let mut sequences = Vec::with_capacity(texts.len());
        let mut encodings = Vec::with_capacity(texts.len());
        for text in texts {
            let encoded = encode(package, text, None, limit, options)?;
            sequences.push(as_sequence(&encoded, limit, info)?);
            encodings.push(encoded);
        }
        let mut all = vec![Vec::new(); texts.len()];
        let wanted = Wanted { logits: true, ..Wanted::default() };
        let tokenizer = package.tokenizer()?;
        let mut runner = runner.lock().map_err(|_| Error::Poisoned)?;
        runner.run(&sequences, info, wanted, &self.config().cancel, &mut |i, out| {
            let encoded = &encodings[i];
            for (t, logits) in out.logits.chunks_exact(info.labels.len().max(1)).enumerate() {
                if encoded.special[t] {
                    continue;
                }
                // The best label is that of a softmax whatever the problem is.
                let scores = scores(Scores::Softmax, logits);
                let best = scores.iter().enumerate().max_by(|a, b| {
                    a.1.total_cmp(b.1).then(b.0.cmp(&a.0)) // the first of equals
                });
                let Some((best, &score)) = best else { continue };
                all[i].push(TokenLabel {
                    token: tokenizer.token_text(encoded.ids[t]).unwrap_or_default().to_owned(),
                    label: info.labels[best].clone(),
                    score,
                    span: encoded.spans[t].clone(),
                });
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Scores of labels that the model was not made for, through a model of entailment: how far a
    /// text entails the statement that each label makes of it. The best first.
    ///
    /// # Errors
    /// There are no labels, the statement has no `{}`, or the model has no label "entailment".
    pub fn classify_by(
        &self,
        text: &str,
        labels: &[&str],
        how: &ZeroShot,
        options: TextOptions,
    ) -> Result<Vec<Scored>, Error> {
        let value = |what, why: &str| Error::Value { what, why: why.to_owned() };
        if labels.is_empty() {
            return Err(value("labels", "there are none; give at least one"));
        }
        if !how.hypothesis.contains("{}") {
            return Err(value("hypothesis", "it has no {} for the label"));
        }
        let (info, _) = self.classifier(Head::Sequence)?;
        let place = |start: &str| {
            info.labels.iter().position(|label| label.to_lowercase().starts_with(start))
        };
        let Some(entailment) = place("entail") else {
            let why = format!(
                "{} has the labels {}; choosing among others needs a model of entailment",
                self.package().name(),
                info.labels.join(", ")
            );
            return Err(Error::Value { what: "labels", why });
        };
        let contradiction = place("contra");
        let statements: Vec<String> =
            labels.iter().map(|label| how.hypothesis.replace("{}", label)).collect();
        let pairs: Vec<_> = statements.iter().map(|s| (text, Some(s.as_str()))).collect();
        // A single label has nothing to be weighed against but its own denial.
        let alone = how.multi_label || labels.len() == 1;
        let mut entailed = Vec::with_capacity(labels.len());
        self.logits_of(&pairs, options, &mut |logits| {
            entailed.push(match alone {
                false => logits[entailment],
                true => {
                    let against =
                        contradiction.unwrap_or(if entailment == 0 { logits.len() - 1 } else { 0 });
                    scores(Scores::Softmax, &[logits[entailment], logits[against]])[0]
                }
            });
        })?;
        if !alone {
            entailed = scores(Scores::Softmax, &entailed);
        }
        let mut scored: Vec<Scored> = labels
            .iter()
            .zip(entailed)
            .map(|(label, score)| Scored { label: (*label).to_owned(), score })
            .collect();
        scored.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(scored)
    }

    /// How well each document answers a query, by a model that reads both together; in the order of
    /// the documents.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cyb_llm::Error> {
    /// let runtime = cyb_llm::Runtime::new(cyb_llm::Config::auto())?;
    /// let model = runtime.load("ms-marco-MiniLM-L6-v2")?;
    /// let documents = ["Paris is the capital of France.", "Cats sleep a lot."];
    /// let scores = model.rerank("What is the capital of France?", &documents, Default::default())?;
    /// assert!(scores[0] > scores[1]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The model has more than one label, or a document is too long.
    pub fn rerank(
        &self,
        query: &str,
        documents: &[&str],
        options: TextOptions,
    ) -> Result<Vec<f32>, Error> {
        let (info, _) = self.classifier(Head::Sequence)?;
        if info.labels.len() != 1 {
            let why = format!(
                "{} has {} labels, but ranking needs a model with one",
                self.package().name(),
                info.labels.len()
            );
            return Err(Error::Value { what: "model", why });
        }
        let pairs: Vec<_> = documents.iter().map(|d| (query, Some(*d))).collect();
        let mut all = Vec::with_capacity(documents.len());
        self.logits_of(&pairs, options, &mut |logits| all.push(scores(info.scores, logits)[0]))?;
        Ok(all)
    }

    /// What the model is for when it is an encoder, or was loaded for whole sequences.
    pub fn task(&self) -> Option<Task> {
        self.encoder().map(|(info, _)| match info.head {
            Head::None => Task::Embed,
            Head::Sequence => Task::Classify,
            Head::Token => Task::ClassifyTokens,
            Head::Words => Task::Words,
        })
    }

    /// The model's encoder, if it has this head.
    fn classifier(
        &self,
        head: Head,
    ) -> Result<(&EncoderInfo, &std::sync::Mutex<EncoderRunner>), Error> {
        let wrong = |has: &'static str| Error::NoHead {
            model: self.package().name().to_owned(),
            has,
            want: head_name(head),
        };
        let (info, runner) = self.encoder().ok_or_else(|| wrong("a decoder"))?;
        match info.head == head {
            true => Ok((info, runner)),
            false => Err(wrong(head_name(info.head))),
        }
    }

    fn logits_of(
        &self,
        texts: &[(&str, Option<&str>)],
        options: TextOptions,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        let (info, runner) = self.classifier(Head::Sequence)?;
        let limit = self.text_limit(None)?;
        let sequences = texts
            .iter()
            .map(|(text, pair)| sequence(self.package(), text, *pair, limit, options, info))
            .collect::<Result<Vec<_>, Error>>()?;
        let wanted = Wanted { logits: true, ..Wanted::default() };
        let mut runner = runner.lock().map_err(|_| Error::Poisoned)?;
        runner.run(&sequences, info, wanted, &self.config().cancel, &mut |_, out: Outputs<'_>| {
            sink(out.logits);
            Ok(())
        })
    }

    /// The most tokens of a text.
    fn text_limit(&self, stages: Option<&Stages>) -> Result<usize, Error> {
        let metadata = &self.package().file.metadata;
        // Tokenizers without a limit say 1e30.
        let tokenizer = metadata.opt::<f64>("tokenizer_config.model_max_length")?;
        let tokenizer = tokenizer.filter(|&n| n >= 1.0).map(|n| n as usize);
        let stated = stages.and_then(|s| s.max_tokens);
        let limits = [Some(self.context_length()), stated.or(tokenizer)];
        Ok(limits.into_iter().flatten().min().unwrap_or(usize::MAX))
    }
}

fn head_name(head: Head) -> &'static str {
    match head {
        Head::None => "an encoder without a head",
        Head::Sequence => "a classifier of texts",
        Head::Token => "a classifier of tokens",
        Head::Words => "a language model",
    }
}

/// Tokens of a text, checked against the model's limit.
fn encode(
    package: &Package,
    text: &str,
    pair: Option<&str>,
    limit: usize,
    options: TextOptions,
) -> Result<cyb_text::Encoded, Error> {
    let truncate_to = options.truncate.then_some(limit);
    let options = PairOptions { parse_special: false, truncate_to };
    let encoded = package
        .tokenizer()?
        .encode_pair(text, pair, options)
        .map_err(|problem| Error::Text { model: package.name().to_owned(), problem })?;
    if encoded.ids.len() > limit {
        return Err(Error::TextTooLong { tokens: encoded.n_tokens, limit });
    }
    if encoded.ids.is_empty() {
        let why = "it has no tokens; give a longer text".to_owned();
        return Err(Error::Value { what: "text", why });
    }
    Ok(encoded)
}

fn sequence(
    package: &Package,
    text: &str,
    pair: Option<&str>,
    limit: usize,
    options: TextOptions,
    info: &EncoderInfo,
) -> Result<Sequence, Error> {
    as_sequence(&encode(package, text, pair, limit, options)?, limit, info)
}

/// Token types that the model has no row for come from a tokenizer of another model.
fn as_sequence(
    encoded: &cyb_text::Encoded,
    limit: usize,
    info: &EncoderInfo,
) -> Result<Sequence, Error> {
    let mut types = encoded.types.clone();
    match types.iter().find(|&&t| info.token_types > 1 && t as usize >= info.token_types) {
        Some(t) => {
            let why = format!("type {t}, but the model has {}", info.token_types);
            return Err(Error::Value { what: "token types", why });
        }
        // With one type or none the tokenizer's are not the model's.
        None if info.token_types <= 1 => types.fill(0),
        None => {}
    }
    let mut ids = encoded.ids.clone();
    if let Some(fill) = info.fill {
        // Models that were trained so take padding for part of the text.
        let n = limit.max(ids.len());
        ids.resize(n, fill);
        types.resize(n, 0);
    }
    Ok(Sequence { ids, types, ..Sequence::default() })
}

/// Logits as scores, computed in `f64` so that they sum to one to the last digit shown.
pub(crate) fn scores(how: Scores, logits: &[f32]) -> Vec<f32> {
    match how {
        Scores::Plain => logits.to_vec(),
        Scores::Sigmoid => {
            logits.iter().map(|&x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32).collect()
        }
        Scores::Softmax => {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f64> = logits.iter().map(|&x| f64::from(x - top).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(|e| (e / sum) as f32).collect()
        }
    }
}

impl Stages {
    /// A text as it is tokenized: with the prompt before it.
    fn prepare(&self, text: &str) -> String {
        let text = format!("{}{text}", self.prompt);
        if self.lowercase { text.to_lowercase() } else { text }
    }
}
