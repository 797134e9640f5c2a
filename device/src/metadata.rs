//! The device's metadata: what it is made of and who owns which part of it, as JSON inside the store's guarded metadata
//! (docs/media-format.md).
//!
//! Invariant: what a device says to a host about namespaces and apps is in the metadata, durably, before it says it.

use crate::namespace::Namespace;
use crate::region::Region;
use serde::{Deserialize, Serialize};

/// Version of this form.
pub const METADATA_VERSION: u32 = 1;

/// An installed app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledApp {
    /// Number.
    pub number: u16,
    /// Name; its module is the store's blob of that name, or, where `built_in`, the one that came with the program.
    pub name: String,
    /// Came with the program and was never replaced.
    pub built_in: bool,
    /// User whose app it is; left out for the kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// [`METADATA_VERSION`].
    pub version: u32,
    /// Identity of the device, made when it was.
    pub uuid: [u8; 16],
    /// Number of SPUs and banks: fixed for the life of the media.
    pub spus: u16,
    /// Stripe size of block namespaces: fixed likewise.
    pub stripe_bytes: u32,
    /// Counts identities given out, so that none repeats.
    pub identities: u64,
    /// Regions.
    pub regions: Vec<Region>,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
    /// Apps.
    pub apps: Vec<InstalledApp>,
    /// The intercall table.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intercalls: Vec<crate::protection::Intercall>,
    /// Weights of users that were set while the device ran: (user, weight).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(u32, u16)>,
}

impl Metadata {
    /// Bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From the store; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| format!("the device's metadata cannot be read: {error}"))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(METADATA_VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "the device's metadata has version {version}, this program reads {METADATA_VERSION}: use a newer one"
                ));
            }
            None => return Err("the device's metadata names no version".to_owned()),
        }
        serde_json::from_value(value).map_err(|error| format!("the device's metadata cannot be read: {error}"))
    }
}

/// A 16-byte identity from a seed and a count (splitmix64 twice), marked as a random UUID (RFC 9562, version 4).
pub(crate) fn identity(seed: u64, count: u64) -> [u8; 16] {
    let mix = |mut z: u64| {
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut bytes = [0; 16];
    let first = mix(seed ^ count.rotate_left(32));
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..].copy_from_slice(&mix(first ^ seed).to_le_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
