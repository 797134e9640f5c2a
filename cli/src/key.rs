//! Keys of hosts: files by which a host proves to a device who it is, and the device, if it is to, that it is the one.
//!
//! ```toml
//! host = "nqn.2014-08.org.nvmexpress:uuid:..."
//! secret = "DHHC-1:01:...:"
//! controller_secret = "DHHC-1:01:...:"    # where the device proves itself, too
//! psk = "NVMeTLSkey-1:01:...:"            # for TLS; then secret may be left out
//! secure_channel = true                   # or: TLS by a key that each authentication generates
//! ```
//!
//! Invariants: a file that others than its owner can read is refused; secrets are printed nowhere, and are wiped from memory after use.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::output;
use serde::Deserialize;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use willow_auth::{Credentials, Derivation, Entropy, Hash, HostKey, PresharedKey, Secret};
use willow_nvme::config::is_nqn;
use zeroize::Zeroizing;

/// Environment variable that names a key file where no flag does.
pub const KEY_VARIABLE: &str = "WILLOW_KEY";
/// Most bytes of a key file.
const FILE_BYTES_MAX: u64 = 4096;

/// `willow key`.
#[derive(Debug, clap::Subcommand)]
pub enum Key {
    /// Make a key for a host, in a file that only its owner can read
    New(NewKey),
    /// Check a key file, and say what is in it; keys are not shown
    Check(CheckKey),
}

/// Flags of `willow key check`.
#[derive(Debug, clap::Args)]
pub struct CheckKey {
    /// The file
    file: PathBuf,
    /// Show the TLS identity by which the host is known to the subsystem of this name, too
    #[arg(long, value_name = "NQN")]
    subsystem: Option<String>,
}

/// Flags of `willow key new`.
#[derive(Debug, clap::Args)]
pub struct NewKey {
    /// The file to make
    file: PathBuf,
    /// NQN of the host; Linux has its own in /etc/nvme/hostnqn [default: a new one]
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// Hash that makes the host's key of the secret, and says how long it is: none, sha256, sha384 or sha512
    #[arg(long, value_name = "HASH", default_value = "sha256")]
    hash: String,
    /// The device proves itself to this host, too
    #[arg(long)]
    both: bool,
    /// A key for TLS, too: the host's connections are encrypted
    #[arg(long)]
    tls: bool,
    /// A key for TLS alone, which proves both ends to each other
    #[arg(long, conflicts_with_all = ["both", "tls"])]
    tls_only: bool,
    /// The host's connections are encrypted by a key that each authentication generates, and no other will do
    #[arg(long, conflicts_with_all = ["tls", "tls_only"])]
    secure_channel: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    host: String,
    secret: Option<Zeroizing<String>>,
    psk: Option<Zeroizing<String>>,
    controller_secret: Option<Zeroizing<String>>,
    #[serde(default)]
    secure_channel: bool,
}

/// Runs it.
pub fn run(key: Key) -> Outcome<()> {
    match key {
        Key::New(new) => make(new),
        Key::Check(check) => show(&check),
    }
}

fn make(new: NewKey) -> Outcome<()> {
    let transform = match new.hash.as_str() {
        "none" => None,
        name => match Hash::ALL.into_iter().find(|hash| hash.name() == name) {
            Some(hash) => Some(hash),
            None => fail!("\"{name}\" is no hash for keys: use none, sha256, sha384 or sha512"),
        },
    };
    let entropy = Entropy::system();
    let host = match new.host {
        Some(host) => host,
        None => fresh_nqn(&entropy)?,
    };
    check_nqn(&host)?;
    let secret = || Secret::generate(transform, &entropy).map_err(Failure::new);
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    text.push_str(&format!("host = \"{host}\"\n"));
    let mut put = |name: &str, value: &str| {
        for part in [name, " = \"", value, "\"\n"] {
            text.push_str(part);
        }
    };
    if !new.tls_only {
        put("secret", &secret()?.to_text());
    }
    if new.both {
        put("controller_secret", &secret()?.to_text());
    }
    if new.tls || new.tls_only {
        let hash = if matches!(transform, None | Some(Hash::Sha256)) { Hash::Sha256 } else { Hash::Sha384 };
        put("psk", &PresharedKey::generate(hash, &entropy).map_err(Failure::new)?.to_text());
    }
    if new.secure_channel {
        text.push_str("secure_channel = true\n");
    }
    let file = new.file.display();
    let mut opened = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new.file)
        .context(|| format!("cannot make {file}"))?;
    opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all()).context(|| format!("cannot write {file}"))?;
    output::line(&format!("host {host}"))
}

fn show(check: &CheckKey) -> Outcome<()> {
    let key = load(&check.file)?;
    output::line(&format!("host {}", key.host_nqn))?;
    if let Some(credentials) = &key.credentials {
        let both = if credentials.controller_secret.is_some() { ", and the device proves itself" } else { "" };
        output::line(&format!("secret for DH-HMAC-CHAP{both}"))?;
    }
    if key.secure_channel {
        output::line("TLS by a key that each authentication generates")?;
    }
    if let Some(psk) = &key.psk {
        let suite = if psk.hash() == Hash::Sha256 { "TLS_AES_128_GCM_SHA256" } else { "TLS_AES_256_GCM_SHA384" };
        output::line(&format!("key for TLS, {suite}"))?;
        if let Some(subsystem) = &check.subsystem {
            check_nqn(subsystem)?;
            let named = psk.tls_key(&key.host_nqn, subsystem, 1, Derivation::Standard);
            output::line(&format!("identity {}", named.identity))?;
        }
    }
    Ok(())
}

fn fresh_nqn(entropy: &Entropy) -> Outcome<String> {
    let mut id = [0; 16];
    entropy.fill(&mut id).map_err(Failure::new)?;
    // A UUID of version 4 (RFC 9562).
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    let mut nqn = "nqn.2014-08.org.nvmexpress:uuid:".to_owned();
    for (index, byte) in id.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            nqn.push('-');
        }
        nqn.push_str(&format!("{byte:02x}"));
    }
    Ok(nqn)
}

/// The text goes between quotes of a file.
fn check_nqn(host: &str) -> Outcome<()> {
    if !is_nqn(host.as_bytes()) || host.contains(['"', '\\']) {
        fail!("\"{host}\" is no host NQN: use nqn.YYYY-MM.DOMAIN:NAME of at most 223 bytes");
    }
    Ok(())
}

/// Reads a key file; one that is open to others is refused.
pub fn load(path: &Path) -> Outcome<HostKey> {
    let file = path.display();
    let circumstance = || format!("cannot read the key file {file}");
    let mut opened = std::fs::File::open(path).context(circumstance)?;
    let about = opened.metadata().context(circumstance)?;
    if about.mode() & 0o077 != 0 {
        fail!("{file} is open to others (mode {:03o}): chmod 600 {file}", about.mode() & 0o777);
    }
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        fail!("{file} is no key file: make one by willow key new");
    }
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    (&mut opened).take(FILE_BYTES_MAX).read_to_string(&mut text).context(circumstance)?;
    // What is wrong with it is not repeated: it may be a secret.
    let Ok(key) = toml::from_str::<KeyFile>(&text) else {
        fail!(
            "{file} is no key file, with host and secret or psk, and perhaps controller_secret: make one by willow key new"
        );
    };
    check_nqn(&key.host).context(|| file.to_string())?;
    let secret = |text: &str, name: &str| text.parse::<Secret>().context(|| format!("{name} in {file}"));
    let psk = key.psk.map(|text| text.parse::<PresharedKey>().context(|| format!("psk in {file}"))).transpose()?;
    let controller_secret = key.controller_secret.map(|text| secret(&text, "controller_secret")).transpose()?;
    let credentials = match key.secret.map(|text| secret(&text, "secret")).transpose()? {
        Some(secret) => Some(Credentials { host_nqn: key.host.clone(), secret, controller_secret }),
        None if controller_secret.is_some() => fail!("{file} has a controller_secret, and no secret of the host"),
        None if psk.is_none() => fail!("{file} has neither a secret nor a psk: make one by willow key new"),
        None => None,
    };
    if key.secure_channel && (credentials.is_none() || psk.is_some()) {
        fail!("{file} has secure_channel, which needs a secret, and no psk beside it");
    }
    Ok(HostKey { host_nqn: key.host, credentials, psk, secure_channel: key.secure_channel })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_made_and_read_and_open_ones_refused() {
        let path = std::env::temp_dir().join(format!("willow-key-{}", std::process::id()));
        let new = |host: &str, hash: &str| NewKey {
            file: path.clone(),
            host: Some(host.to_owned()),
            hash: hash.to_owned(),
            both: true,
            tls: hash == "sha384",
            tls_only: false,
            secure_channel: hash == "sha512",
        };
        assert!(make(new("nqn.2025-01.org.example:\"", "sha256")).is_err());
        assert!(make(new("someone", "sha256")).is_err_and(|failure| failure.to_string().contains("host NQN")));
        assert!(make(new("nqn.2025-01.org.example:a", "md5")).is_err());
        make(new("nqn.2025-01.org.example:a", "sha384")).unwrap();
        assert!(make(new("nqn.2025-01.org.example:a", "sha384")).is_err(), "it is not written over");
        let read = load(&path).unwrap();
        assert!(
            read.host_nqn.ends_with(":a")
                && read.credentials.as_ref().is_some_and(|read| read.controller_secret.is_some())
        );
        assert_eq!(read.psk.as_ref().map(PresharedKey::hash), Some(Hash::Sha384));
        assert!(format!("{read:?}").contains("48 bytes"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "host = \"nqn.2025-01.org.example:a\"\nsecret = \"DHHC-1:00:hidden:\"").unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("base64") && !error.contains("hidden"), "{error}");
        std::fs::write(&path, "host = \"nqn.2025-01.org.example:a\"\npsk = \"NVMeTLSkey-1:01:hidden:\"").unwrap();
        let error = load(&path).unwrap_err().to_string();
        assert!(error.contains("psk") && error.contains("base64") && !error.contains("hidden"), "{error}");
        std::fs::write(&path, "host = \"nqn.2025-01.org.example:a\"").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("neither"));
        for (added, good) in [("secure_channel = false\n", true), ("secure_channel = true\n", false)] {
            let psk = PresharedKey::generate(Hash::Sha256, &Entropy::system()).unwrap().to_text();
            let text = format!("host = \"nqn.2025-01.org.example:a\"\npsk = \"{}\"\n{added}", *psk);
            std::fs::write(&path, text).unwrap();
            let read = load(&path);
            assert!(
                read.is_ok() == good && read.err().is_none_or(|error| error.to_string().contains("secure_channel"))
            );
        }
        std::fs::remove_file(&path).unwrap();
        make(new("nqn.2025-01.org.example:a", "sha512")).unwrap();
        assert!(load(&path).unwrap().secure_channel);
        std::fs::write(&path, "secret = hidden").unwrap();
        assert!(!load(&path).unwrap_err().to_string().contains("hidden"));
        std::fs::remove_file(&path).unwrap();
        assert!(is_nqn(fresh_nqn(&Entropy::system()).unwrap().as_bytes()));
    }
}
