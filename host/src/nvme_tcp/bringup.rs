//! The commands that make a controller and its queues ready (NVMe Base 3.5, 6.3): written once over [`Port`], which the tokio
//! driver implements by waiting and the polled driver by blocking.

use super::authenticate::authenticate;
use super::identity::{ControllerIdentity, NamespaceIdentity, command_set};
use super::queue::{Completed, Transfer};
use super::{NvmeError, Options};
use std::sync::Arc;
use std::time::Duration;
use willow_auth::GeneratedKey;
use willow_wire::bytes::u32_at;
use willow_wire::spec::authentication::{CONNECT_AUTHENTICATION_REQUIRED, CONNECT_SECURE_CHANNEL_REQUIRED};
use willow_wire::spec::fabrics::{
    self, CONNECT_DATA_BYTES, CONNECT_NO_FLOW_CONTROL, CONTROLLER_DYNAMIC, ConnectCommand, ConnectData, DISCOVERY_NQN,
    DiscoveryEntry, DiscoveryHeader,
};
use willow_wire::spec::identify::{self, cns};
use willow_wire::spec::log::GetLogPage;
use willow_wire::spec::property::{self, Capabilities, Configuration, csts};
use willow_wire::spec::{SubmissionEntry, feature, log, opcode};

/// Entries of the admin queue.
pub const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Most namespaces that are enumerated.
pub const NAMESPACES_MAX: usize = 4096;
/// Most entries that are read from a discovery log.
pub const DISCOVERY_ENTRIES_MAX: u64 = 1024;
/// How often a discovery log that changes under the reader is read anew.
const DISCOVERY_TRIES_MAX: u32 = 8;
const READY_POLL: Duration = Duration::from_millis(2);

/// A queue on which one command at a time is done.
pub trait Port {
    /// Does a command: ends with its completion, whatever its status.
    fn execute(
        &mut self,
        what: &'static str,
        entry: SubmissionEntry,
        transfer: Transfer,
    ) -> impl Future<Output = Result<Completed, NvmeError>> + Send;
    /// Waits.
    fn sleep(&mut self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// Fails where the status is no success.
pub fn check(what: &'static str, completed: Completed) -> Result<Completed, NvmeError> {
    if completed.entry.status.is_success() {
        Ok(completed)
    } else {
        Err(NvmeError::Status { what, status: completed.entry.status, result: completed.entry.result })
    }
}

async fn command<P: Port>(
    port: &mut P,
    what: &'static str,
    entry: SubmissionEntry,
    transfer: Transfer,
) -> Result<Completed, NvmeError> {
    check(what, port.execute(what, entry, transfer).await?)
}

/// Reads a property.
pub async fn property_get<P: Port>(port: &mut P, offset: u32, eight: bool) -> Result<u64, NvmeError> {
    Ok(command(port, "Property Get", fabrics::property_get(offset, eight), Transfer::None).await?.entry.result)
}

/// Writes a property of 4 bytes.
pub async fn property_set<P: Port>(port: &mut P, offset: u32, value: u32) -> Result<(), NvmeError> {
    let entry = fabrics::property_set(offset, u64::from(value), false);
    command(port, "Property Set", entry, Transfer::None).await.map(|_| ())
}

/// Connects a queue to a controller; returns the controller's id. `entries` is the queue's size.
pub async fn connect<P: Port>(
    port: &mut P,
    options: &Options,
    queue: u16,
    controller_id: u16,
    entries: u16,
) -> Result<u16, NvmeError> {
    connect_for(port, options, queue, controller_id, entries, false).await.map(|(controller, _)| controller)
}

/// Connects an admin queue in the clear, for the key for TLS that its authentication generates: the options by which to connect anew.
pub async fn channel<P: Port>(port: &mut P, options: &Options) -> Result<Options, NvmeError> {
    let connected = connect_for(port, options, 0, CONTROLLER_DYNAMIC, ADMIN_QUEUE_ENTRIES, true).await?;
    let key = connected.1.map(|key| key.tls_keys(&options.host_nqn, &options.subsystem_nqn));
    let [key, _] = key.ok_or_else(|| NvmeError::Incompatible {
        address: options.address,
        what: "does not authenticate, and no key for a secure channel can be generated".to_owned(),
    })?;
    Ok(Options { channel_key: Some(Arc::new(key)), ..options.clone() })
}

async fn connect_for<P: Port>(
    port: &mut P,
    options: &Options,
    queue: u16,
    controller_id: u16,
    entries: u16,
    with_key: bool,
) -> Result<(u16, Option<GeneratedKey>), NvmeError> {
    let admin = queue == 0;
    let connect = ConnectCommand {
        record_format: fabrics::CONNECT_RECORD_FORMAT,
        queue_id: queue,
        queue_size: entries.saturating_sub(1).max(1),
        attributes: if admin { 0 } else { CONNECT_NO_FLOW_CONTROL },
        keep_alive_ms: if admin { options.keep_alive.as_millis().min(u128::from(u32::MAX)) as u32 } else { 0 },
    };
    let data = ConnectData {
        host_id: options.host_id,
        controller_id,
        subsystem_nqn: options.subsystem_nqn.clone(),
        host_nqn: options.host_nqn.clone(),
    };
    let bytes: &[u8; CONNECT_DATA_BYTES] = &data.to_bytes();
    let done = command(port, "Connect", connect.to_entry(), Transfer::ToController(bytes.to_vec())).await?;
    let asked = done.entry.result as u32;
    let incompatible = |what: &str| Err(NvmeError::Incompatible { address: options.address, what: what.to_owned() });
    if asked & CONNECT_SECURE_CHANNEL_REQUIRED != 0 && !with_key {
        return incompatible("requires a secure channel: this host's key file does not say secure_channel = true");
    }
    let mut generated = None;
    let discovery = options.subsystem_nqn == DISCOVERY_NQN;
    let by_tls = options.psk.is_some() || options.channel_key.is_some();
    match (&options.credentials, asked & CONNECT_AUTHENTICATION_REQUIRED != 0) {
        (Some(credentials), true) => generated = authenticate(port, options, credentials.clone(), with_key).await?,
        (None, true) => return incompatible("requires authentication, and no key of this host was given"),
        // Who was promised a proof does not go on without it; a generated key comes of one.
        (Some(credentials), false)
            if credentials.controller_secret.is_some() && options.channel_key.is_none() && !discovery =>
        {
            return incompatible("does not authenticate, and cannot be known to be the one that the key is for");
        }
        (_, false) if options.proof_required && !by_tls && !discovery => {
            return incompatible(
                "lets any host in without a proof: start it with the keys of its hosts (serve --host-key)",
            );
        }
        (_, false) => {}
    }
    Ok((asked as u16, generated))
}

/// A controller that is ready.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Its id.
    pub controller_id: u16,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// What it says of itself.
    pub identity: ControllerIdentity,
}

async fn wait_status<P: Port>(
    port: &mut P,
    options: &Options,
    capabilities: Capabilities,
    mask: u32,
    value: u32,
) -> Result<(), NvmeError> {
    // CAP.TO is in units of 500 ms; one more for the round trips.
    let mut left = Duration::from_millis(500 * (u64::from(capabilities.timeout_500ms()) + 1));
    loop {
        let status = property_get(port, property::CSTS, false).await? as u32;
        if status & csts::CFS != 0 && mask & csts::RDY != 0 && value & csts::RDY != 0 {
            return Err(NvmeError::Incompatible {
                address: options.address,
                what: "reports a fatal status (CSTS.CFS)".to_owned(),
            });
        }
        if status & mask == value {
            return Ok(());
        }
        if left.is_zero() {
            return Err(NvmeError::Incompatible {
                address: options.address,
                what: format!("did not change its status {status:x}h within the time that it promised (CAP.TO)"),
            });
        }
        port.sleep(READY_POLL).await;
        left = left.saturating_sub(READY_POLL);
    }
}

/// Connects the admin queue and enables the controller.
pub async fn enable<P: Port>(port: &mut P, options: &Options) -> Result<Ready, NvmeError> {
    let controller_id = connect(port, options, 0, CONTROLLER_DYNAMIC, ADMIN_QUEUE_ENTRIES).await?;
    let capabilities = Capabilities(property_get(port, property::CAP, true).await?);
    let css = if capabilities.all_command_sets() { Configuration::CSS_ALL } else { Configuration::CSS_NVM };
    let configuration = property_get(port, property::CC, false).await.map_or(0, |value| value as u32);
    if Configuration(configuration).enabled() {
        property_set(port, property::CC, Configuration::new(false, css).0).await?;
        wait_status(port, options, capabilities, csts::RDY, 0).await?;
    }
    property_set(port, property::CC, Configuration::new(true, css).0).await?;
    wait_status(port, options, capabilities, csts::RDY, csts::RDY).await?;
    let data = identify(port, cns::CONTROLLER, 0, 0).await?;
    let identity = ControllerIdentity::parse(&data, capabilities)
        .map_err(|what| NvmeError::Incompatible { address: options.address, what })?;
    Ok(Ready { controller_id, capabilities, identity })
}

/// Asks for I/O queues; returns how many there are.
pub async fn number_of_queues<P: Port>(port: &mut P, wanted: u16) -> Result<u16, NvmeError> {
    let wanted = u32::from(wanted.max(1) - 1);
    let entry = SubmissionEntry::new(opcode::admin::SET_FEATURES)
        .with_cdw(10, u32::from(feature::NUMBER_OF_QUEUES))
        .with_cdw(11, wanted << 16 | wanted);
    let done = command(port, "Set Features (number of queues)", entry, Transfer::None).await?;
    let (submission, completion) = (done.entry.result & 0xffff, done.entry.result >> 16 & 0xffff);
    Ok((submission.min(completion).min(u64::from(wanted)) + 1) as u16)
}

/// Chooses the asynchronous events of interest; a controller without the feature is let be.
pub async fn configure_events<P: Port>(port: &mut P, events: u32) -> Result<(), NvmeError> {
    if events == 0 {
        return Ok(());
    }
    let entry = SubmissionEntry::new(opcode::admin::SET_FEATURES)
        .with_cdw(10, u32::from(feature::ASYNC_EVENT_CONFIGURATION))
        .with_cdw(11, events);
    port.execute("Set Features (asynchronous events)", entry, Transfer::None).await.map(|_| ())
}

/// Identify.
pub async fn identify<P: Port>(port: &mut P, cns: u8, nsid: u32, csi: u8) -> Result<Vec<u8>, NvmeError> {
    let entry = SubmissionEntry::new(opcode::admin::IDENTIFY)
        .with_nsid(nsid)
        .with_cdw(10, u32::from(cns))
        .with_cdw(11, u32::from(csi) << 24);
    let buffer = vec![0; identify::BYTES];
    Ok(command(port, "Identify", entry, Transfer::FromController(buffer)).await?.buffer)
}

/// The active namespaces.
pub async fn namespaces<P: Port>(port: &mut P, options: &Options) -> Result<Vec<NamespaceIdentity>, NvmeError> {
    let incompatible = |what| NvmeError::Incompatible { address: options.address, what };
    let mut found = Vec::new();
    let mut after = 0;
    loop {
        let list = identify(port, cns::ACTIVE_NAMESPACES, after, 0).await?;
        let mut count = 0;
        for nsid in list.chunks_exact(4).map(|entry| u32_at(entry, 0)).take_while(|nsid| *nsid != 0) {
            if nsid <= after || found.len() >= NAMESPACES_MAX {
                return Err(incompatible("lists namespaces out of order or without end".to_owned()));
            }
            after = nsid;
            count += 1;
            if let Some(namespace) = self::namespace(port, options, nsid).await? {
                found.push(namespace);
            }
        }
        if count < identify::BYTES / 4 {
            return Ok(found);
        }
    }
}

/// One namespace; `None` where there is none of that number (any more).
pub async fn namespace<P: Port>(
    port: &mut P,
    options: &Options,
    nsid: u32,
) -> Result<Option<NamespaceIdentity>, NvmeError> {
    let incompatible = |what| NvmeError::Incompatible { address: options.address, what };
    let gone = |error: &NvmeError| error.status().is_some();
    // Descriptors came with version 1.3: an older controller has the NVM command set alone.
    let csi = match identify(port, cns::NAMESPACE_DESCRIPTORS, nsid, 0).await {
        Ok(descriptors) => command_set(&descriptors),
        Err(error) if gone(&error) => identify::CSI_NVM,
        Err(error) => return Err(error),
    };
    let cns = if csi == identify::CSI_NVM { cns::NAMESPACE } else { cns::CSI_NAMESPACE };
    let data = match identify(port, cns, nsid, csi).await {
        Ok(data) => data,
        Err(error) if gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    match csi {
        identify::CSI_NVM => NamespaceIdentity::parse_block(nsid, &data).map_err(incompatible),
        identify::CSI_KV => NamespaceIdentity::parse_kv(nsid, &data).map(Some).map_err(incompatible),
        other => {
            Ok(Some(NamespaceIdentity { nsid, nguid: [0; 16], kind: super::identity::NamespaceKind::Other(other) }))
        }
    }
}

/// Reads a log page.
pub async fn log_page<P: Port>(
    port: &mut P,
    nsid: u32,
    page: u8,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>, NvmeError> {
    let request = GetLogPage { page, specific: 0, retain_event: false, bytes: bytes as u64, offset, csi: 0 };
    let buffer = vec![0; bytes];
    Ok(command(port, "Get Log Page", request.to_entry(nsid), Transfer::FromController(buffer)).await?.buffer)
}

/// Reads the discovery log whole, and again where it changed meanwhile.
pub async fn discovery_log<P: Port>(port: &mut P, options: &Options) -> Result<Vec<DiscoveryEntry>, NvmeError> {
    const ENTRY: usize = fabrics::DISCOVERY_ENTRY_BYTES;
    let incompatible = |what: &str| NvmeError::Incompatible { address: options.address, what: what.to_owned() };
    for _ in 0..DISCOVERY_TRIES_MAX {
        let head = log_page(port, 0, log::DISCOVERY, 0, ENTRY).await?;
        let header = DiscoveryHeader::from_bytes(&head).ok_or_else(|| incompatible("cut its discovery log short"))?;
        if header.records > DISCOVERY_ENTRIES_MAX {
            return Err(incompatible("lists too many entries in its discovery log"));
        }
        let mut entries = Vec::new();
        for index in 0..header.records {
            let bytes = log_page(port, 0, log::DISCOVERY, (index + 1) * ENTRY as u64, ENTRY).await?;
            entries.extend(DiscoveryEntry::from_bytes(&bytes));
        }
        let again = log_page(port, 0, log::DISCOVERY, 0, ENTRY).await?;
        if DiscoveryHeader::from_bytes(&again).is_some_and(|again| again.generation == header.generation) {
            return Ok(entries);
        }
    }
    Err(incompatible("changes its discovery log faster than it can be read"))
}

/// Shuts the controller down (NVMe Base 3.6).
pub async fn shut_down<P: Port>(port: &mut P, options: &Options, capabilities: Capabilities) -> Result<(), NvmeError> {
    let css = if capabilities.all_command_sets() { Configuration::CSS_ALL } else { Configuration::CSS_NVM };
    property_set(port, property::CC, Configuration::new(true, css).with_shutdown(1).0).await?;
    wait_status(port, options, capabilities, csts::SHST_MASK, csts::SHST_COMPLETE).await
}
