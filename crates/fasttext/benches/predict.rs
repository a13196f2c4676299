//! Predictions a second of lid.176.ftz on short lines of many languages, one thread.
//! `cargo bench -p cyb-fasttext`

#![allow(clippy::print_stdout, reason = "a benchmark prints what it measures")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on has failed")]

use std::time::Instant;

use cyb_fasttext::{FastText, Scratch};

fn main() {
    let start = Instant::now();
    let model = FastText::open(&cyb_testkit::model("lid.176.ftz")).unwrap();
    println!("loaded in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let text = std::fs::read_to_string(cyb_testkit::golden("languages.txt")).unwrap();
    // As short as the lines that the package was measured on: four words.
    let lines: Vec<String> =
        text.lines().map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect();
    let mut scratch = Scratch::default();
    let french = &lines[1];
    let best = model.predict(french, 1, 0.0, &mut scratch);
    assert_eq!(model.label(best[0].0), "__label__fr");
    let mut best = 0f64;
    for _ in 0..10 {
        let (start, mut n) = (Instant::now(), 0);
        while start.elapsed().as_millis() < 200 {
            for line in &lines {
                assert!(!model.predict(line, 1, 0.0, &mut scratch).is_empty());
            }
            n += lines.len();
        }
        best = best.max(n as f64 / start.elapsed().as_secs_f64());
    }
    println!("{best:.0} predictions a second");
}
