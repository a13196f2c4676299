//! Pictures: from a file's bytes to the tensor a vision model takes, and from what a detector says
//! to boxes in a picture.
//!
//! The one idea: an [`Image`] is upright 8-bit RGB, whatever the file was, so that all that follows
//! knows one kind of picture. Files come from strangers: sizes are checked before memory is taken,
//! and a file that ends early is an error.

#![forbid(unsafe_code)]

mod detection;
mod draw;
mod font;
mod image;
mod letterbox;
mod resample;
mod resize;

pub use crate::image::{Image, MAX_PIXELS, MAX_SIDE, MediaError, PictureFormat};
pub use detection::{Box2, Candidate, Head, HeadError, Thresholds, suppress};
pub use draw::{Color, Label, class_color, draw_labels};
pub use letterbox::Letterbox;
pub use resample::{Filter, resample};
pub use resize::resize_linear;
