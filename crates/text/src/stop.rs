//! Stop strings in streamed text.

/// Finds stop strings across the borders of the pieces in which text arrives, and holds back text
/// that may be the beginning of one.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that arrived and was not given out: a proper beginning of some stop string.
    held: String,
    stopped: bool,
}

/// What a [`StopMatcher`] gives out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is certainly before any stop string.
    pub text: String,
    /// The stop string that ended the text.
    pub stop: Option<String>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, held: String::new(), stopped: false }
    }

    /// Takes the next piece of text. After a stop string was found nothing more comes out.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.stopped {
            return StopOutput { text: String::new(), stop: None };
        }
        self.held.push_str(piece);
        // The earliest match wins; of two at one place the longer.
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop)));
        let found = found.min_by_key(|&(at, stop)| (at, std::cmp::Reverse(stop.len())));
        if let Some((at, stop)) = found {
            let stop = stop.clone();
            self.stopped = true;
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return StopOutput { text, stop: Some(stop) };
        }
        let safe = self.first_possible_stop();
        let rest = self.held.split_off(safe);
        StopOutput { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// The text that was held back and turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// First byte from which the held text is the beginning of a stop string.
    fn first_possible_stop(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let starts = (from..self.held.len()).filter(|&at| self.held.is_char_boundary(at));
        let mut possible =
            starts.filter(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])));
        possible.next().unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&stop| stop.to_owned()));
        let mut text = String::new();
        for piece in pieces {
            let output = matcher.push(piece);
            text.push_str(&output.text);
            if output.stop.is_some() {
                return (text, output.stop);
            }
        }
        text.push_str(&matcher.finish());
        (text, None)
    }

    /// H1: a stop string over several tokens.
    #[test]
    fn stop_over_several_pieces() {
        let pieces: Vec<String> = ('A'..='Z').map(|letter| format!("{letter} ")).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (text, stop) = run(&["O P Q"], &pieces);
        assert_eq!(text, "A B C D E F G H I J K L M N ");
        assert_eq!(stop.as_deref(), Some("O P Q"));
    }

    /// H3: no part of a stop string is shown, and a false start is given out.
    #[test]
    fn split_stop_and_false_start() {
        let pieces = ["hi", "<", "|", "im", "_", "end", "|>"];
        assert_eq!(run(&["<|im_end|>"], &pieces), ("hi".into(), Some("<|im_end|>".into())));
        let mut matcher = StopMatcher::new(["<|im_end|>".to_owned()]);
        assert_eq!(matcher.push("hi<|im_").text, "hi");
        assert_eq!(matcher.push("x").text, "<|im_x");
        assert_eq!(run(&["<|im_end|>"], &["a<|im"]), ("a<|im".into(), None));
    }

    #[test]
    fn overlapping_stops_take_the_earliest_then_the_longest() {
        assert_eq!(run(&["bc", "ab"], &["xabc"]), ("x".into(), Some("ab".into())));
        assert_eq!(run(&["a", "ab"], &["xab"]), ("x".into(), Some("ab".into())));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some("aab".into())));
        assert_eq!(run(&["", "é!"], &["é", "é", "!"]), ("é".into(), Some("é!".into())));
    }

    proptest! {
        /// Pieces of any size give what the whole text gives.
        #[test]
        fn chunking_changes_nothing(text in "[abé]{0,12}", stop in "[abé]{1,3}", cuts in prop::collection::vec(0usize..12, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            let expected = text.split_once(stop.as_str()).map_or(text.as_str(), |(before, _)| before);
            prop_assert_eq!(run(&[&stop], &pieces).0, expected);
        }
    }
}
