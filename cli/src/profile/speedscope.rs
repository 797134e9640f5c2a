//! A profile for speedscope (its file format, `sampled` profiles): for each SPU the time that the processor ran, the time that handlers waited, and
//! the instructions.

use super::Whole;
use std::collections::BTreeMap;

/// Names of frames, each once.
#[derive(Default)]
struct Frames {
    names: Vec<String>,
    indices: BTreeMap<String, usize>,
}

impl Frames {
    fn index(&mut self, name: String) -> usize {
        if let Some(index) = self.indices.get(&name) {
            return *index;
        }
        self.names.push(name.clone());
        self.indices.insert(name, self.names.len() - 1);
        self.names.len() - 1
    }
}

/// One `sampled` profile an SPU.
fn profiles(
    frames: &mut Frames,
    (what, unit): (&str, &str),
    stacks: impl Iterator<Item = (u16, Vec<String>, u64)>,
) -> Vec<serde_json::Value> {
    let mut by_spu = BTreeMap::<u16, (Vec<Vec<usize>>, Vec<u64>)>::new();
    for (spu, names, weight) in stacks.filter(|(.., weight)| *weight > 0) {
        let (samples, weights) = by_spu.entry(spu).or_default();
        samples.push(names.into_iter().map(|name| frames.index(name)).collect());
        weights.push(weight);
    }
    let profile = |(spu, (samples, weights)): (u16, (Vec<Vec<usize>>, Vec<u64>))| {
        let end: u64 = weights.iter().sum();
        serde_json::json!({
            "type": "sampled", "name": format!("SPU {spu}: {what}"), "unit": unit,
            "startValue": 0, "endValue": end, "samples": samples, "weights": weights,
        })
    };
    by_spu.into_iter().map(profile).collect()
}

/// The file.
pub fn file(whole: &Whole) -> String {
    let mut frames = Frames::default();
    let mut all = profiles(&mut frames, ("running", "nanoseconds"), whole.running_stacks());
    all.extend(profiles(&mut frames, ("waiting", "nanoseconds"), whole.waiting_stacks()));
    all.extend(profiles(&mut frames, ("instructions", "none"), whole.instructions()));
    let names: Vec<serde_json::Value> =
        frames.names.into_iter().map(|name| serde_json::json!({ "name": name })).collect();
    serde_json::json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": format!("willow app {}", whole.app),
        "exporter": concat!("willow ", env!("CARGO_PKG_VERSION")),
        "shared": { "frames": names },
        "profiles": all,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn samples_name_frames_that_are_there_and_weights_sum_up() {
        let file: serde_json::Value = serde_json::from_str(&super::file(&crate::profile::tests::whole())).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap();
        let profiles = file["profiles"].as_array().unwrap();
        let names: Vec<&str> = profiles.iter().map(|profile| profile["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["SPU 0: running", "SPU 1: running", "SPU 1: waiting", "SPU 0: instructions", "SPU 1: instructions"]
        );
        for profile in profiles {
            let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
            assert_eq!(samples.len(), weights.len());
            assert_eq!(profile["endValue"], weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>());
            for frame in samples.iter().flat_map(|sample| sample.as_array().unwrap()) {
                assert!((frame.as_u64().unwrap() as usize) < frames.len());
            }
        }
        assert_eq!(profiles[0]["endValue"], 8_000_000);
        let deepest = profiles[0]["samples"][0].as_array().unwrap();
        assert_eq!(frames[deepest[2].as_u64().unwrap() as usize]["name"], "work<&T>");
    }
}
