//! A model file as a whole.

use std::path::Path;

use cyb_tensor::MappedFile;

use crate::dictionary::{Dictionary, Ngrams};
use crate::loss::Loss;
use crate::matrix::Matrix;
use crate::reader::Reader;
use crate::{FastTextError, MAGIC, Problem, Scratch, at};

/// A classifier. It is read-only: threads may share it.
#[derive(Debug)]
pub struct FastText {
    source: Source,
    model: Model,
}

#[derive(Debug)]
enum Source {
    File(MappedFile),
    Memory(Vec<u8>),
}

impl Source {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::File(file) => file.bytes(),
            Source::Memory(bytes) => bytes,
        }
    }
}

#[derive(Debug)]
struct Model {
    dictionary: Dictionary,
    input: Matrix,
    output: Matrix,
    loss: Loss,
}

impl FastText {
    /// Opens a model file; its matrices are mapped, not read, where they are not quantized.
    ///
    /// # Errors
    /// The file cannot be opened, is damaged, or is no classifier.
    pub fn open(path: &Path) -> Result<FastText, FastTextError> {
        let file = MappedFile::open(path)?;
        let model = parse(file.bytes()).map_err(at(path))?;
        Ok(FastText { source: Source::File(file), model })
    }

    /// A model from the bytes of its file.
    ///
    /// # Errors
    /// As [`FastText::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<FastText, Problem> {
        let model = parse(&bytes)?;
        Ok(FastText { source: Source::Memory(bytes), model })
    }

    /// Number of labels.
    pub fn n_labels(&self) -> usize {
        self.model.dictionary.n_labels()
    }

    /// A label as the file has it, with its prefix `__label__`.
    ///
    /// # Panics
    /// If there are no more than `label` labels.
    pub fn label(&self, label: usize) -> &str {
        self.model.dictionary.label(label)
    }

    /// The `k` most probable labels of a text whose probability is at least `threshold`, the most
    /// probable first. Line breaks are spaces. The end of a line is a word to the model, so an empty
    /// text has labels too, unless the model does not know that word: then there are none.
    pub fn predict(
        &self,
        text: &str,
        k: usize,
        threshold: f32,
        scratch: &mut Scratch,
    ) -> Vec<(usize, f32)> {
        let Model { dictionary, input, output, loss } = &self.model;
        let file = self.source.bytes();
        let mut ids = std::mem::take(&mut scratch.ids);
        let mut hidden = std::mem::take(&mut scratch.hidden);
        dictionary.rows_of(text, &mut ids, &mut scratch.hashes);
        hidden.clear();
        hidden.resize(input.columns(), 0.0);
        for &id in &ids {
            input.add_row(file, id as usize, &mut hidden);
        }
        let mut best = Vec::new();
        if !ids.is_empty() && k > 0 {
            let scale = 1.0 / ids.len() as f32;
            hidden.iter_mut().for_each(|v| *v *= scale);
            let labels = dictionary.n_labels();
            let wanted = [k.min(labels) as f32, threshold];
            best = loss.best(file, output, labels, wanted, &hidden, scratch);
        }
        scratch.ids = ids;
        scratch.hidden = hidden;
        best
    }
}

/// Text models of the reference.
const SUPERVISED: i32 = 3;

fn parse(bytes: &[u8]) -> Result<Model, Problem> {
    let mut r = Reader::new(bytes);
    if !bytes.starts_with(&MAGIC) {
        return Err(Problem::Magic);
    }
    r.take(MAGIC.len())?;
    let version = r.i32()?;
    if !(11..=12).contains(&version) {
        return Err(Problem::Version(version));
    }
    let [dim, _window, _epochs, _least_count, _negatives, words, loss, model] = {
        let mut values = [0; 8];
        for value in &mut values {
            *value = r.i32()?;
        }
        values
    };
    let [buckets, least, most, _update_rate] = [r.i32()?, r.i32()?, r.i32()?, r.i32()?];
    let _sampling = r.i64()?;
    if model != SUPERVISED {
        return Err(Problem::NoClassifier);
    }
    // Classifiers of version 11 did not use n-grams of characters, whatever the file says.
    let most = if version == 11 { 0 } else { most };
    let not_negative = |what, value: i32| {
        let want = "less than 0";
        u32::try_from(value).map_err(|_| Problem::Value { what, value: value.into(), want })
    };
    let ngrams = Ngrams {
        least: not_negative("the length of n-grams", least)? as usize,
        most: not_negative("the length of n-grams", most)? as usize,
        words: not_negative("the number of words of an n-gram", words)? as usize,
        buckets: not_negative("the number of buckets", buckets)?,
    };
    if ngrams.buckets == 0 && (ngrams.most > 0 || ngrams.words > 1) {
        let (what, want) = ("the number of buckets", "but there are n-grams");
        return Err(Problem::Value { what, value: 0, want });
    }
    let dictionary = Dictionary::read(&mut r, ngrams)?;
    r.part("the matrix of words");
    let quantized = r.flag("the mark of quantization")?;
    let input = if quantized { Matrix::quantized(&mut r)? } else { Matrix::dense(&mut r)? };
    if dictionary.is_pruned() && !quantized {
        let (what, want) = ("the mark of quantization", "but pruned models are quantized");
        return Err(Problem::Value { what, value: 0, want });
    }
    r.part("the matrix of labels");
    let output_quantized = r.flag("the mark of a quantized output")? && quantized;
    let output = if output_quantized { Matrix::quantized(&mut r)? } else { Matrix::dense(&mut r)? };
    if r.rest() > 0 {
        return Err(Problem::Rest(r.rest()));
    }
    let loss = Loss::new(loss, &dictionary.counts)?;
    let check = |what, got: usize, fits: bool| {
        let want = "which does not fit the vocabulary";
        if fits { Ok(()) } else { Err(Problem::Value { what, value: got as i64, want }) }
    };
    let width = usize::try_from(dim).unwrap_or(usize::MAX);
    check("the width", input.columns(), input.columns() == width && output.columns() == width)?;
    check("the number of rows", input.rows(), input.rows() >= dictionary.rows())?;
    let labels = dictionary.n_labels();
    check("the number of rows of labels", output.rows(), output.rows() >= loss.rows(labels))?;
    Ok(Model { dictionary, input, output, loss })
}
