//! `soma-runtime config` shows what holds and where it was said.

use clap::Args;
use serde_json::json;

use crate::args::Common;
use crate::failure::Failure;
use crate::output;
use crate::settings::Settings;

/// Show which options hold and where each comes from
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(common: &Common, Arguments {}: &Arguments) -> Result<(), Failure> {
    let settings = Settings::collect(common, &[])?;
    settings.config()?;
    settings.sampling()?;
    if common.json {
        let mut values = serde_json::Map::new();
        for setting in settings.all() {
            let (value, source) = match &setting.value {
                Some((value, origin)) => (json!(value), origin.to_string()),
                None => (json!(null), "default".to_owned()),
            };
            let entry = json!({ "value": value, "source": source, "default": setting.default });
            values.insert(setting.name.clone(), entry);
        }
        return output::json(&values);
    }
    let rows: Vec<Vec<String>> = settings
        .all()
        .iter()
        .map(|setting| match &setting.value {
            Some((value, origin)) => vec![setting.name.clone(), value.clone(), origin.to_string()],
            None => vec![setting.name.clone(), setting.default.clone(), "default".to_owned()],
        })
        .collect();
    output::text(&output::table(&rows))
}
