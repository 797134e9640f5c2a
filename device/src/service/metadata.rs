//! The device's metadata: what it is made of and who owns which part of it, as JSON inside the store's guarded metadata
//! (docs/media-format.md).
//!
//! Invariants: what a device says to a host about namespaces and apps is in the metadata, durably, before it says it; a
//! module is stored under the hash of its content, so that the metadata name the bytes and not only the app.

use crate::config::stripe_is_possible;
use crate::media::marks::Marks;
use crate::namespace::Namespace;
use crate::region::Region;
use crate::service::reservation::{Reservation, Told};
use serde::{Deserialize, Serialize};

/// Newest version of this form: with blocks that cannot be read. Written where there are some: programs that know of none would read them.
pub const METADATA_VERSION: u32 = 4;
/// Version that is written where a namespace says which app serves it, or how long its stripes are.
const METADATA_VERSION_BOUND: u32 = 3;
/// Version that is written where there is nothing of the kind: programs that know of neither read it.
const METADATA_VERSION_PLAIN: u32 = 2;
/// The oldest version that is read.
pub const METADATA_VERSION_MIN: u32 = 1;

/// An installed app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledApp {
    /// Number.
    pub number: u16,
    /// Name.
    pub name: String,
    /// Came with the program and was never replaced.
    pub built_in: bool,
    /// The store's blob that holds its module: [`module_name`] of its content, or, where a program that wrote version 1
    /// installed it, the app's name. Left out where `built_in`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
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
    /// Stripe of block namespaces that say nothing else: fixed likewise.
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
    pub intercalls: Vec<crate::spu::protection::Intercall>,
    /// Weights of users that were set while the device ran: (user, weight).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<(u32, u16)>,
    /// Namespaces that not every host is shown; one that is not listed is open to all hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Namespaces that hosts have registered with for reservations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
    /// Blocks that cannot be read until they are written, as ranges of banks.
    #[serde(default, skip_serializing_if = "Marks::is_empty")]
    pub uncorrectable: Marks,
}

/// Which hosts a namespace is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// NSID.
    pub nsid: u32,
    /// NQNs of the hosts that it is attached to; with none, no host is shown it.
    pub hosts: Vec<String>,
    /// It is one host's alone: never attached to more (NVMe's NMIC bit 0 is clear).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

/// What the metadata say of hosts: who is shown which namespace, and who has reserved it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostTables {
    /// In order of NSID; a namespace that is not listed is open to all hosts.
    pub attachments: Vec<Attachment>,
    /// In order of NSID; with a namespace that is not listed no host has registered.
    pub reservations: Vec<Reservation>,
    /// What hosts were told of reservations since the device started.
    pub notices: Told,
}

/// Name of the blob that holds a module: SHA-256 of its content, in hexadecimal.
pub fn module_name(module: &[u8]) -> String {
    use std::fmt::Write;
    hmac_sha256::Hash::hash(module).iter().fold(String::with_capacity(MODULE_NAME_BYTES), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

/// Bytes of [`module_name`].
pub const MODULE_NAME_BYTES: usize = 64;
const _: () = assert!(MODULE_NAME_BYTES <= crate::media::BLOB_NAME_BYTES_MAX);

impl Metadata {
    /// Bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        let is_bound = self.namespaces.iter().any(Namespace::is_bound);
        let version = match (self.uncorrectable.is_empty(), is_bound) {
            (false, _) => METADATA_VERSION,
            (true, true) => METADATA_VERSION_BOUND,
            (true, false) => METADATA_VERSION_PLAIN,
        };
        serde_json::to_vec(&Metadata { version, ..self.clone() }).unwrap_or_default()
    }

    /// What they say of hosts.
    pub(crate) fn host_tables(&self) -> HostTables {
        HostTables {
            attachments: self.attachments.clone(),
            reservations: self.reservations.clone(),
            notices: Told::default(),
        }
    }

    /// From the store; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value =
            serde_json::from_slice(bytes).map_err(|error| format!("the device's metadata cannot be read: {error}"))?;
        let readable = u64::from(METADATA_VERSION_MIN)..=u64::from(METADATA_VERSION);
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if readable.contains(&version) => {}
            Some(version) => {
                return Err(format!(
                    "the device's metadata has version {version}, this program reads up to {METADATA_VERSION}: use a newer one"
                ));
            }
            None => return Err("the device's metadata names no version".to_owned()),
        }
        let mut metadata: Metadata =
            serde_json::from_value(value).map_err(|error| format!("the device's metadata cannot be read: {error}"))?;
        if metadata.version == 1 {
            // Version 1 named a module after its app.
            for app in metadata.apps.iter_mut().filter(|app| !app.built_in) {
                app.module = Some(app.name.clone());
            }
        }
        metadata.version = METADATA_VERSION;
        if !metadata.uncorrectable.is_sound(metadata.spus) {
            return Err("the device's metadata cannot be read: its ranges that cannot be read make no sense".to_owned());
        }
        for namespace in &mut metadata.namespaces {
            namespace.complete();
            let Namespace { nsid, stripe_bytes, .. } = *namespace;
            if !stripe_is_possible(stripe_bytes) {
                return Err(format!(
                    "the device's metadata cannot be read: namespace {nsid} has stripes of {stripe_bytes} bytes"
                ));
            }
        }
        // Those that were not to outlive a loss of power are gone with the process.
        metadata.reservations.retain(|reservation| reservation.persistent);
        Ok(metadata)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_read_and_a_newer_one_refused() {
        let text = r#"{"version":1,"uuid":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"spus":2,"stripe_bytes":8192,
            "identities":3,"regions":[],"namespaces":[{"nsid":1,"csi":"nvm","size_bytes":8192,"block_bytes":512,"base":0,"bank_bytes":65536,
            "nguid":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}],"apps":[{"number":1,"name":"base-io","built_in":true},
            {"number":2,"name":"scan","built_in":false,"owner":1000}]}"#;
        let metadata = Metadata::decode(text.as_bytes()).unwrap();
        assert_eq!(metadata.version, METADATA_VERSION);
        let namespace = &metadata.namespaces[0];
        assert_eq!((namespace.app.as_str(), namespace.stripe_bytes), ("base-io", 8192));
        assert_eq!(metadata.apps[0].module, None);
        assert_eq!(metadata.apps[1].module.as_deref(), Some("scan"));
        assert_eq!(Metadata::decode(&metadata.encode()), Ok(metadata));
        let newer = text.replace("\"version\":1", "\"version\":5");
        assert!(Metadata::decode(newer.as_bytes()).unwrap_err().contains("version 5"));
    }

    #[test]
    fn a_modules_name_is_the_hash_of_its_content() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(module_name(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert!(crate::media::blob_name_is_valid(&module_name(b"")));
    }
}
