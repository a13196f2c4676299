//! `soma-runtime detect` finds objects in a picture.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use cyb_llm::media::{Box2, Image, Label, PictureFormat, class_color, draw_labels};
use cyb_llm::{DetectOptions, Detection, Runtime};
use serde::Serialize;

use super::{read_image, read_text};
use crate::args::{Common, ModelArgument};
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Find objects in a picture
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The picture: JPEG, PNG, WebP, BMP or GIF
    #[arg(long, short, value_name = "FILE")]
    image: PathBuf,
    /// How sure a detection must be, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.25)]
    confidence: f32,
    /// How far two boxes of a class may overlap (intersection over union), from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.45)]
    iou: f32,
    /// Names of the classes, separated by commas, or a file with one a line [default: the model's]
    #[arg(long, value_name = "NAMES")]
    labels: Option<String>,
    /// Where to put the picture with its boxes: .png, .jpg, .webp or .bmp
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report<'a> {
    detections: &'a [Detection],
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    for (name, value) in [("--confidence", arguments.confidence), ("--iou", arguments.iou)] {
        if !(0.0..=1.0).contains(&value) {
            return Err(Failure::usage(format!("{name} is {value}; give 0 to 1")));
        }
    }
    let format = arguments.output.as_deref().map(PictureFormat::of_path).transpose();
    let format = format.map_err(|error| Failure::usage(error.to_string()))?;
    let mut image = read_image(&arguments.image)?;
    let settings = Settings::collect(common, &[("model", arguments.model.model.as_deref())])?;
    let labels = arguments.labels.as_deref().map(read_labels).transpose()?;
    let runtime = Runtime::new(settings.config()?)?;
    let detector = runtime.load_detector(settings.model(), labels)?;
    let options = DetectOptions {
        confidence: arguments.confidence,
        iou: arguments.iou,
        ..DetectOptions::default()
    };
    let detections = detector.detect(&image, options)?;
    if let (Some(path), Some(format)) = (&arguments.output, format) {
        annotate(&mut image, &detections);
        let fail = |why: &dyn std::fmt::Display| {
            Failure::work(format!("cannot write {}: {why}", path.display()))
        };
        let bytes = image.encode(format).map_err(|error| fail(&error))?;
        write_whole(path, &bytes).map_err(|error| fail(&error))?;
    }
    if common.json {
        return output::json(&Report { detections: &detections });
    }
    if detections.is_empty() {
        output::note(format_args!(
            "nothing found with a confidence above {}",
            arguments.confidence
        ));
        return Ok(());
    }
    let row = |d: &Detection| {
        let [x1, y1, x2, y2] = d.bbox;
        vec![
            d.class.clone(),
            format!("{:.3}", d.confidence),
            format!("{x1:.1} {y1:.1} {x2:.1} {y2:.1}"),
        ]
    };
    output::text(&output::table(&detections.iter().map(row).collect::<Vec<_>>()))
}

/// A file with a name a line where there is such a file, else names separated by commas.
fn read_labels(labels: &str) -> Result<Vec<String>, Failure> {
    let path = Path::new(labels);
    let names: Vec<String> = match path.is_file() {
        true => read_text(path)?.lines().map(|line| line.trim().to_owned()).collect(),
        false => labels.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    let last = names.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1);
    match last {
        0 => Err(Failure::usage("--labels has no names; give some, or leave it out")),
        _ => Ok(names[..last].to_vec()),
    }
}

/// Writes a file that appears under its name only when it is whole.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".part-").suffix(".tmp");
    #[cfg(unix)]
    {
        // The umask decides, as for any other new file.
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn annotate(image: &mut Image, detections: &[Detection]) {
    let label = |d: &Detection| {
        let [x1, y1, x2, y2] = d.bbox;
        Label {
            bbox: Box2 { x1, y1, x2, y2 },
            text: format!("{} {:.2}", d.class, d.confidence),
            color: class_color(d.class_id),
        }
    };
    draw_labels(image, &detections.iter().map(label).collect::<Vec<_>>());
}
