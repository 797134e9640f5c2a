//! What `willow serve` is told: flags, then a TOML file with the same names, then the preset, then defaults; the first that
//! speaks of a thing decides. docs/configuration.md is the reference.

use crate::failure::{Context, Failure, Outcome, fail};
use crate::key;
use crate::modules;
use crate::preset::{self, Preset};
use crate::size::Size;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use willow_device::config::DeviceConfig;
use willow_device::model::ModelParameters;
use willow_nvme::HostAuthentication;
use willow_nvme::access::Access;
use willow_nvme::config::ListenAddress;
use willow_shm_front::FrontConfig;
use willow_sim::flash::FlashChoice;

/// Where the device listens unless told otherwise.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:4420";
/// Size of block namespace 1 and of the first KV namespace unless told otherwise.
const NAMESPACE_DEFAULT: Size = Size(4 << 30);
/// Most bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The flags of `willow serve`, and the keys of its configuration file (there with `_` for `-`).
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeOptions {
    /// Parameters of the device: the name of a preset (fast, bee3, null-nvme, modern-nvme; with flash: jasmine, slc, tlc, mqsim) or the path of
    /// a preset file
    #[arg(long)]
    pub preset: Option<String>,
    /// The FTL of a preset with flash [default: page]
    #[arg(long, value_name = "NAME")]
    pub ftl: Option<String>,
    /// Clock of the device: free (no modelled delay), or real (completions wait until the preset's hardware would have finished)
    #[arg(long, value_name = "free|real")]
    pub clock: Option<String>,
    /// Keep the contents in files in this folder, made where it does not exist
    #[arg(long, value_name = "DIR", conflicts_with = "ram")]
    pub media: Option<PathBuf>,
    /// Keep the contents in memory; they end with the process (the default)
    #[arg(long)]
    pub ram: bool,
    /// Size of block namespace 1 of a fresh device, 0 for none [default: 4G]
    #[arg(long)]
    pub size: Option<Size>,
    /// Size of the key-value namespace of a fresh device, 0 for none [default: 4G]
    #[arg(long, value_name = "SIZE")]
    pub kv_size: Option<Size>,
    /// Most bytes that all namespaces and regions of a fresh device may take together [default: the preset's]
    #[arg(long, value_name = "SIZE")]
    pub capacity: Option<Size>,
    /// Address for NVMe/TCP, may be repeated [default: 127.0.0.1:4420]; port 0 takes a free one; with tls: in front all who come there
    /// have to come by TLS; with a state behind it (optimized, non-optimized, inaccessible) hosts with several paths use it first, after
    /// the others, or not at all; none: no NVMe/TCP
    #[arg(long, value_name = "[tls:]ADDR[=STATE]|none")]
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<Listen>,
    /// Address of another discovery controller that discovering hosts are referred to, may be repeated
    #[arg(long, value_name = "ADDR")]
    pub referral: Vec<SocketAddr>,
    /// Where there is no --host-key, let every user of this machine act as a host, not only root and the user who runs this
    #[arg(long)]
    pub trust_loopback: bool,
    /// Key file of a host that may connect over NVMe/TCP (willow key new); may be repeated. With one, hosts have to prove themselves
    #[arg(long, value_name = "FILE")]
    pub host_key: Vec<PathBuf>,
    /// TLS: permitted (hosts whose key file has a psk have to come by it, others may not) or required of every connection
    /// [default: permitted]
    #[arg(long, value_name = "permitted|required")]
    pub tls: Option<String>,
    /// Unix socket where processes of this machine get endpoints in shared memory [default: none]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Most endpoints in shared memory at once [default: 1024]
    #[arg(long, value_name = "N")]
    pub endpoints: Option<usize>,
    /// Number of SPUs, 1 to 64 [default: what the media folder has, else the preset's]
    #[arg(long)]
    pub spus: Option<u16>,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// What to log: error, warn, info, debug, trace, or a filter such as warn,willow_tcp=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Logical block of block namespace 1 of a fresh device: 512 or 4096 [default: 4096]
    #[arg(long, value_name = "512|4096")]
    pub block_bytes: Option<u32>,
    /// Name of the subsystem [default: made of the device's unique id]
    #[arg(long)]
    pub nqn: Option<String>,
    /// Give the processes of a user N times the part of the processors that others have, 1 to 1000 (several times for several users)
    #[arg(long, value_name = "USER=N")]
    pub weight: Vec<Weight>,
    /// Run this built-in app as native code, to measure what the sandbox costs (base-io)
    #[arg(long, value_name = "APP")]
    pub native: Vec<String>,
    /// Keep compiled code of apps in this folder, so that the next start need not compile them; none: nowhere [default: the user's folder for
    /// caches]
    #[arg(long, value_name = "DIR|none")]
    pub module_cache: Option<PathBuf>,
}

/// A user's weight, written `USER=N` with the number of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Weight {
    /// The user.
    pub user: u32,
    /// The weight.
    pub weight: u16,
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('=').and_then(|(user, weight)| Some((user.parse().ok()?, weight.parse().ok()?)));
        match parsed {
            Some((user, weight)) => Ok(Weight { user, weight }),
            None => Err(format!("\"{text}\" is no weight: write the user's number and a weight, such as 1000=4")),
        }
    }
}

impl TryFrom<String> for Weight {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Where to listen: an address, with `tls:` in front where all have to come by TLS and `=STATE` behind it for the state of that path, or
/// `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Nowhere.
    None,
    /// There.
    At(ListenAddress),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Listen::None);
        }
        let (address, tls_required) = match text.strip_prefix("tls:") {
            Some(address) => (address, true),
            None => (text, false),
        };
        let (address, access) = match address.split_once('=') {
            Some((address, state)) => (address, state.parse()?),
            None => (address, Access::Optimized),
        };
        match address.parse() {
            Ok(address) => Ok(Listen::At(ListenAddress { address, tls_required, access })),
            Err(_) => Err(format!(
                "\"{text}\" is no socket address: write IP:PORT such as 0.0.0.0:4420, tls:IP:PORT, IP:PORT=non-optimized, or none"
            )),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// One value, or a list of them.
fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Listen>, D::Error> {
    struct Texts;
    impl<'de> serde::de::Visitor<'de> for Texts {
        type Value = Vec<Listen>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a socket address, or a list of them")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<Listen>, E> {
            text.parse().map(|listen| vec![listen]).map_err(E::custom)
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut texts: A) -> Result<Vec<Listen>, A::Error> {
            let mut all = Vec::new();
            while let Some(listen) = texts.next_element()? {
                all.push(listen);
            }
            Ok(all)
        }
    }
    deserializer.deserialize_any(Texts)
}

/// The addresses that were asked for, or the default.
fn addresses(asked: Vec<Listen>) -> Outcome<Vec<ListenAddress>> {
    let at = |listen: &Listen| if let Listen::At(address) = listen { Some(*address) } else { None };
    let addresses: Vec<ListenAddress> = asked.iter().filter_map(at).collect();
    match asked.len() {
        0 => Ok(vec![ListenAddress::from(
            LISTEN_DEFAULT.parse::<SocketAddr>().context(|| "default address".to_owned())?,
        )]),
        many if many > addresses.len() && many > 1 => fail!("--listen none goes with no other --listen"),
        _ => Ok(addresses),
    }
}

/// Everything that `serve` needs, checked.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// Folder of the media files; `None`: memory.
    pub media: Option<PathBuf>,
    /// Bound of the media: as asked for, or the preset's.
    pub capacity: Option<Size>,
    /// True where the number of SPUs was asked for, and is not the preset's.
    pub spus_asked: bool,
    /// Name of the subsystem.
    pub nqn: Option<String>,
    /// Addresses for NVMe/TCP.
    pub listen: Vec<ListenAddress>,
    /// Other discovery controllers that hosts are referred to.
    pub referrals: Vec<SocketAddr>,
    /// Users of this machine who may act as hosts where hosts have no keys; `None`: all.
    pub local_users: Option<Vec<u32>>,
    /// Endpoints in shared memory.
    pub socket: Option<FrontConfig>,
    /// Hosts that may connect; `None`: any.
    pub authentication: Option<HostAuthentication>,
    /// Address for Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Filter of the log.
    pub log: String,
    /// Names of apps to run natively.
    pub native: Vec<String>,
    /// The device.
    pub device: DeviceConfig,
    /// Flash in the place of NV memory.
    pub flash: Option<FlashChoice>,
    /// The hardware that it is to be felt as; `None`: the free clock.
    pub hardware: Option<ModelParameters>,
}

/// Parses a file of settings; the error names file, line and field.
pub fn parse_toml<T: DeserializeOwned>(text: &str, file: &str) -> Outcome<T> {
    willow_sim::preset::parse_toml(text, file).map_err(Failure::new)
}

impl ServeOptions {
    /// From a TOML file.
    pub fn load(path: &Path) -> Outcome<Self> {
        let file = path.display().to_string();
        let bytes = std::fs::metadata(path).context(|| format!("cannot read configuration {file}"))?.len();
        if bytes > FILE_BYTES_MAX {
            fail!("{file} has {bytes} bytes, a configuration has at most {FILE_BYTES_MAX}");
        }
        let text = std::fs::read_to_string(path).context(|| format!("cannot read configuration {file}"))?;
        let options: ServeOptions = parse_toml(&text, &file)?;
        if options.ram && options.media.is_some() {
            fail!("{file}: `ram` and `media` exclude each other");
        }
        Ok(options)
    }

    /// These, and what `other` says where these say nothing.
    pub fn or(self, other: ServeOptions) -> ServeOptions {
        let media_decided = self.media.is_some() || self.ram;
        ServeOptions {
            preset: self.preset.or(other.preset),
            ftl: self.ftl.or(other.ftl),
            clock: self.clock.or(other.clock),
            media: if media_decided { self.media } else { other.media },
            ram: if media_decided { self.ram } else { other.ram },
            size: self.size.or(other.size),
            kv_size: self.kv_size.or(other.kv_size),
            capacity: self.capacity.or(other.capacity),
            listen: if self.listen.is_empty() { other.listen } else { self.listen },
            referral: if self.referral.is_empty() { other.referral } else { self.referral },
            trust_loopback: self.trust_loopback || other.trust_loopback,
            spus: self.spus.or(other.spus),
            metrics: self.metrics.or(other.metrics),
            log: self.log.or(other.log),
            block_bytes: self.block_bytes.or(other.block_bytes),
            nqn: self.nqn.or(other.nqn),
            socket: self.socket.or(other.socket),
            endpoints: self.endpoints.or(other.endpoints),
            weight: if self.weight.is_empty() { other.weight } else { self.weight },
            tls: self.tls.or(other.tls),
            host_key: if self.host_key.is_empty() { other.host_key } else { self.host_key },
            native: if self.native.is_empty() { other.native } else { self.native },
            module_cache: self.module_cache.or(other.module_cache),
        }
    }

    /// Fills in the preset and the defaults, and checks.
    pub fn resolve(self) -> Outcome<ServeConfig> {
        let real = match self.clock.as_deref() {
            None | Some("free") => false,
            Some("real") => true,
            Some(other) => fail!("\"{other}\" is no clock of `serve`: use --clock free or --clock real"),
        };
        let socket = self
            .socket
            .map(FrontConfig::new)
            .map(|config| FrontConfig { endpoints_max: self.endpoints.unwrap_or(config.endpoints_max), ..config });
        if let Some(config) = &socket {
            config.validate().map_err(Failure::new)?;
        }
        let asked = self.preset.as_deref().unwrap_or(preset::DEFAULT);
        let preset = Preset::load(asked).map_err(Failure::new)?;
        let flash = FlashChoice::of_preset(&preset, self.ftl.as_deref()).map_err(Failure::new)?;
        let defaults = DeviceConfig::default();
        let (size, kv_size) = (self.size.map(|size| size.0), self.kv_size.map(|size| size.0));
        let (namespace_bytes, kv_namespace_bytes) = match &flash {
            Some(flash) => flash.split(size, kv_size, NAMESPACE_DEFAULT.0),
            None => (size.unwrap_or(NAMESPACE_DEFAULT.0), kv_size.unwrap_or(NAMESPACE_DEFAULT.0)),
        };
        let mut device = preset.apply(DeviceConfig {
            namespace_bytes,
            kv_namespace_bytes,
            block_bytes: self.block_bytes.unwrap_or(defaults.block_bytes),
            user_weights: self.weight.iter().map(|weight| (weight.user, weight.weight)).collect(),
            ..defaults
        });
        device.spus = self.spus.unwrap_or(device.spus);
        if let Some(flash) = &flash {
            if self.spus.is_some_and(|spus| spus != flash.banks) || self.capacity.is_some() {
                fail!(
                    "--spus and --capacity go with no flash: preset {} has {} banks of its own",
                    flash.name,
                    flash.banks
                );
            }
            device.spus = flash.banks;
        }
        device.kept_modules = modules::kept(self.module_cache.as_deref())?;
        device.validate().map_err(Failure::new)?;
        let listen = addresses(self.listen)?;
        if listen.is_empty() && socket.is_none() {
            fail!("--listen none without --socket PATH: nobody could reach the device");
        }
        let hardware = match (real, preset.model) {
            (false, _) => None,
            (true, Some(hardware)) => Some(hardware),
            (true, None) => fail!(
                "--clock real needs modelled hardware, which preset {} does not have: use --preset bee3, null-nvme or modern-nvme, or \
                 a file with tables such as theirs",
                preset.name
            ),
        };
        let tls_required = match self.tls.as_deref() {
            None | Some("permitted") => false,
            Some("required") => true,
            Some(other) => fail!("\"{other}\" is no way of TLS: use permitted or required"),
        };
        let wants_tls = listen.iter().find(|listen| listen.tls_required);
        if let Some(listen) = wants_tls.filter(|_| self.host_key.is_empty()) {
            let address = listen.address;
            fail!("--listen tls:{address} needs hosts with keys for TLS: --host-key FILE (willow key new --tls)");
        }
        let authentication = match self.host_key.is_empty() {
            true if tls_required => {
                fail!("--tls required needs hosts with keys for it: --host-key FILE (willow key new --tls)")
            }
            true => None,
            false => {
                let hosts = self.host_key.iter().map(|path| key::load(path)).collect::<Outcome<Vec<_>>>()?;
                let mut known = HostAuthentication::new(hosts).map_err(Failure::new)?;
                known.tls_required = tls_required;
                known.validate().map_err(Failure::new)?;
                // Where all come by TLS from the first byte, keys that an authentication generates come too late.
                let mut reachable = known.clone();
                reachable.tls_required |= !listen.is_empty() && listen.iter().all(|one| one.tls_required);
                reachable.validate().map_err(|why| Failure::new(format!("all of --listen is tls: {why}")))?;
                Some(known)
            }
        };
        let owner = rustix::process::geteuid().as_raw();
        Ok(ServeConfig {
            local_users: (!self.trust_loopback).then(|| vec![0, owner]),
            authentication,
            hardware,
            media: self.media,
            capacity: self.capacity.or(preset.device.capacity.0),
            spus_asked: self.spus.is_some(),
            nqn: self.nqn,
            listen,
            referrals: self.referral,
            socket,
            metrics: self.metrics,
            log: self.log.unwrap_or_else(|| "info".to_owned()),
            native: self.native,
            device,
            flash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Outcome<ServeOptions> {
        parse_toml(text, "willow.toml")
    }

    #[test]
    fn flags_go_before_the_file_and_the_file_before_the_preset() {
        let file =
            parse("spus = 4\nsize = \"1G\"\nram = true\nlisten = \"[::1]:4421\"\nnative = [\"base-io\"]").unwrap();
        let flags = ServeOptions { size: Some(Size(2 << 30)), media: Some("d".into()), ..ServeOptions::default() };
        let config = flags.or(file).resolve().unwrap();
        assert_eq!(config.device.spus, 4);
        assert_eq!(config.device.namespace_bytes, 2 << 30);
        assert_eq!(config.media, Some(PathBuf::from("d")));
        assert_eq!(config.listen.iter().map(|at| at.address.port()).collect::<Vec<_>>(), [4421]);
        let two = parse("listen = [\"[::1]:4421\", \"127.0.0.1:0\"]\nsocket = \"./s\"").unwrap();
        assert_eq!(two.clone().resolve().unwrap().listen.len(), 2);
        assert_eq!(two.resolve().unwrap().local_users.unwrap()[0], 0);
        let paths = parse("listen = [\"[::1]:4421=non-optimized\", \"127.0.0.1:1\"]\nreferral = [\"10.0.0.9:8009\"]");
        let paths = paths.unwrap().resolve().unwrap();
        let states: Vec<Access> = paths.listen.iter().map(|at| at.access).collect();
        assert_eq!((states, paths.referrals.len()), (vec![Access::NonOptimized, Access::Optimized], 1));
        assert!(parse("listen = \"none\"\nsocket = \"./s\"").unwrap().resolve().unwrap().listen.is_empty());
        assert_eq!(config.device.kv_namespace_bytes, 4 << 30);
        assert_eq!(config.native, ["base-io"]);
    }

    #[test]
    fn flash_is_shared_by_a_block_and_a_key_value_namespace() {
        let sizes = |text: &str| {
            let config = parse(&format!("preset = \"jasmine\"\n{text}")).unwrap().resolve().unwrap();
            let flash = config.flash.unwrap();
            (config.device.namespace_bytes, config.device.kv_namespace_bytes, flash.namespace_bytes())
        };
        let (block, key_value, all) = sizes("");
        assert_eq!(key_value, 4 << 30, "as on any other preset");
        assert!(block + key_value <= all && block > all / 8 * 7, "{block} of {all}");
        let (block, key_value, _) = sizes("size = \"64M\"");
        assert_eq!((block, key_value), (64 << 20, 4 << 30));
        let (block, key_value, _) = sizes("kv_size = 0");
        assert_eq!((block, key_value), (all, 0));
        let (block, key_value, _) = sizes(&format!("size = {}", all - (1 << 30)));
        assert!(key_value > 0 && block + key_value <= all, "{key_value}");
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file_and_line() {
        let error = parse("spus = 4\ncolour = \"red\"\n").unwrap_err().to_string();
        for part in ["willow.toml", "line 2", "colour", "listen"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!error.contains('\n'));
    }

    #[test]
    fn bad_values_are_refused_with_what_is_possible() {
        for (text, expected) in [
            ("size = \"many\"", "is no size"),
            ("size = -1", "not negative"),
            ("listen = \"here\"", "socket address"),
            ("spus = \"two\"", "u16"),
            ("weight = [\"me\"]", "1000=4"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let resolve = |text: &str| parse(text).unwrap().resolve().unwrap_err().to_string();
        assert!(resolve("weight = [\"1000=0\"]").contains("user 1000"));
        assert!(resolve("listen = \"none\"").contains("--socket"));
        assert!(resolve("listen = [\"none\", \"127.0.0.1:1\"]").contains("no other"));
        assert!(resolve("listen = \"tls:127.0.0.1:1\"").contains("--host-key"));
        assert!(parse("listen = \"127.0.0.1:1=fast\"").unwrap_err().to_string().contains("non-optimized"));
        assert!(resolve("spus = 65").contains("must be 1 to 64"));
        assert!(resolve("block_bytes = 1024").contains("512 or 4096"));
        assert!(resolve("clock = \"real\"").contains("bee3"));
        assert!(resolve("clock = \"sundial\"").contains("free"));
        assert!(resolve("preset = \"slow\"").contains("fast"));
    }
}
