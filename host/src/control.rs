//! The control service: apps, namespaces, statistics. For kernel endpoints only (the device says so where it is not one).

use crate::hre::{Hre, HreError, RpcCall, RpcReply};
use std::sync::Arc;
use willow_wire::control::{self as wire, CONTROL_APP};

pub use willow_wire::control::{
    AppInfo, AttachRequest, Attachment, CommandSet, ControlStatus, CoreInfo, Frame, GlobalValue, Intercall,
    IntercallChange, NamespaceInfo, NamespaceRequest, PermissionInfo, ProcessInfo, ProcessRequest, UPCALL_APP_ENDED,
    UPCALL_PERMISSION_MISS,
};

/// Bytes of a reply that are asked for at once.
const REPLY_BYTES: u32 = 64 << 10;
/// Longest reply that is put together.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Most bytes of permissions in one request.
const PERMISSIONS_BYTES_MAX: u64 = 1 << 20;
/// How often a reply that changes its length while it is read is read anew.
const REPLY_TRIES_MAX: u32 = 8;

/// Longest core that is put together.
const CORE_BYTES_MAX: usize = 80 << 20;

/// What a core begins with, and where its memory does; `None`: more of it is to be read.
fn read_core_info(whole: &[u8]) -> Result<Option<(CoreInfo, usize)>, HreError> {
    let Some((length, rest)) = whole.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    let Some(json) = rest.get(..length) else { return Ok(None) };
    let info = serde_json::from_slice(json).map_err(|error| HreError::Answer(error.to_string()))?;
    Ok(Some((info, 4 + length)))
}

/// The control service of a device.
#[derive(Clone)]
pub struct ControlClient {
    hre: Arc<dyn Hre>,
}

impl ControlClient {
    /// Over an endpoint.
    pub fn new(hre: Arc<dyn Hre>) -> Self {
        ControlClient { hre }
    }

    async fn send(&self, handler: u8, payload: Vec<u8>) -> Result<u32, HreError> {
        let call = RpcCall { app: CONTROL_APP, handler, spu: Some(0), payload, ..RpcCall::default() };
        let reply = self.hre.rpc(call).await?;
        self.check(reply).await.map(|reply| reply.result)
    }

    /// The sentence of a failure, asked for on the same endpoint.
    async fn check(&self, reply: RpcReply) -> Result<RpcReply, HreError> {
        if reply.status == 0 {
            return Ok(reply);
        }
        let status = reply.status;
        let text = match self.read(wire::ERROR_TEXT, &[]).await {
            Ok(text) if !text.is_empty() => String::from_utf8_lossy(&text).into_owned(),
            _ => match ControlStatus::from_u32(status) {
                Some(known) => format!("the control service answered {known:?}"),
                None => format!("the control service answered with status {status}"),
            },
        };
        Err(HreError::Control { status, text })
    }

    async fn reply(&self, handler: u8, offset: u32, more: &[u8]) -> Result<RpcReply, HreError> {
        let mut arguments = offset.to_le_bytes().to_vec();
        arguments.extend_from_slice(more);
        let reply_bytes_max = u64::from(REPLY_BYTES).min(self.hre.transfer_bytes_max()) as u32;
        self.hre
            .rpc(RpcCall { app: CONTROL_APP, handler, spu: Some(0), arguments, reply_bytes_max, ..RpcCall::default() })
            .await
    }

    /// Reads a reply in pieces; anew where its length changes meanwhile. A failure's text is not looked for.
    async fn read(&self, handler: u8, more: &[u8]) -> Result<Vec<u8>, HreError> {
        'anew: for _ in 0..REPLY_TRIES_MAX {
            let mut whole: Vec<u8> = Vec::new();
            let mut length = None;
            loop {
                let reply = self.reply(handler, whole.len() as u32, more).await?;
                if reply.status != 0 {
                    return Err(HreError::Control { status: reply.status, text: String::new() });
                }
                let now = reply.result as usize;
                if now > REPLY_BYTES_MAX {
                    return Err(HreError::Answer(format!("a reply of {now} bytes")));
                }
                if *length.get_or_insert(now) != now {
                    continue 'anew;
                }
                let piece = &reply.data[..reply.data.len().min(now - whole.len())];
                whole.extend_from_slice(piece);
                if whole.len() >= now {
                    return Ok(whole);
                }
                if piece.is_empty() {
                    return Err(HreError::Answer(format!("a reply of {now} bytes that ends at {}", whole.len())));
                }
            }
        }
        Err(HreError::Answer("a reply that changes its length each time that it is read".to_owned()))
    }

    async fn read_checked(&self, handler: u8, more: &[u8]) -> Result<Vec<u8>, HreError> {
        match self.read(handler, more).await {
            Err(HreError::Control { status, .. }) => {
                Box::pin(self.check(RpcReply { status, ..RpcReply::default() })).await.map(|_| Vec::new())
            }
            other => other,
        }
    }

    /// Installs a module, in the place of an app of the same name; returns its number.
    pub async fn install(&self, module: Vec<u8>) -> Result<u16, HreError> {
        let limit = self.hre.transfer_bytes_max();
        if module.len() as u64 > limit {
            return Err(HreError::Argument(format!(
                "the module has {} bytes, one command moves at most {limit}",
                module.len()
            )));
        }
        Ok(self.send(wire::INSTALL, module).await? as u16)
    }

    /// Removes an app.
    pub async fn remove(&self, name: &str) -> Result<(), HreError> {
        self.send(wire::REMOVE, name.as_bytes().to_vec()).await.map(|_| ())
    }

    /// Number of an installed app.
    pub async fn find_app(&self, name: &str) -> Result<u16, HreError> {
        Ok(self.send(wire::FIND_APP, name.as_bytes().to_vec()).await? as u16)
    }

    /// The installed apps.
    pub async fn apps(&self) -> Result<Vec<AppInfo>, HreError> {
        self.json(wire::LIST_APPS).await
    }

    /// How worn the blocks of a die of an SPU's flash are.
    pub async fn die_wear(&self, spu: u16, die: u32) -> Result<wire::DieWear, HreError> {
        let arguments = [u32::from(spu).to_le_bytes(), die.to_le_bytes()].concat();
        let bytes = self.read_checked(wire::FLASH_MAP, &arguments).await?;
        let mut words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
        match [words.next(), words.next(), words.next()] {
            [Some(dies), Some(planes), Some(rated_erases)] => {
                Ok(wire::DieWear { dies, planes, rated_erases, blocks: words.collect() })
            }
            _ => Err(HreError::Answer(format!("a map of flash of {} bytes", bytes.len()))),
        }
    }

    /// What an app has printed from a place in its log on: the place where that begins, later than the asked one where the device does not keep
    /// so much, and some of the text; none: that was the end so far.
    pub async fn log_from(&self, app: u16, position: u64) -> Result<(u64, Vec<u8>), HreError> {
        let arguments = [&u32::from(app).to_le_bytes()[..], &position.to_le_bytes()].concat();
        let reply = self.check(self.reply(wire::READ_LOG, 0, &arguments).await?).await?;
        let length = reply.data.len().min(reply.result as usize);
        match reply.data[..length].split_first_chunk() {
            Some((from, text)) => Ok((u64::from_le_bytes(*from), text.to_vec())),
            None => Err(HreError::Answer(format!("a piece of a log of {length} bytes"))),
        }
    }

    /// Starts an app anew: what it had begun is answered as ended, its data stay.
    pub async fn reset(&self, name: &str) -> Result<(), HreError> {
        self.send(wire::RESET_APP, name.as_bytes().to_vec()).await.map(drop)
    }

    /// The instance of an app that trapped last, and its memory.
    pub async fn core(&self, app: u16) -> Result<(CoreInfo, Vec<u8>), HreError> {
        let (mut whole, mut trap, mut begin) = (Vec::new(), 0, None);
        loop {
            let arguments = [u32::from(app), trap].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
            let reply = self.check(self.reply(wire::READ_CORE, whole.len() as u32, &arguments).await?).await?;
            let total = reply.result as usize;
            if total > CORE_BYTES_MAX {
                return Err(HreError::Answer(format!("a core of {total} bytes")));
            }
            let piece = &reply.data[..reply.data.len().min(total.saturating_sub(whole.len()))];
            whole.extend_from_slice(piece);
            if begin.is_none() {
                begin = read_core_info(&whole)?;
                trap = begin.as_ref().map_or(0, |(info, _): &(CoreInfo, usize)| info.trap);
            }
            if whole.len() >= total {
                break;
            }
            if piece.is_empty() {
                return Err(HreError::Answer(format!("a core of {total} bytes that ends at {}", whole.len())));
            }
        }
        match begin {
            Some((info, begin)) if (whole.len() - begin) as u64 == info.memory_bytes => {
                Ok((info, whole.split_off(begin)))
            }
            _ => Err(HreError::Answer(format!("a core of {} bytes without its memory", whole.len()))),
        }
    }

    /// Has an app be profiled, for a time at most and until this endpoint is closed.
    pub async fn begin_profile(&self, app: u16, milliseconds: u32) -> Result<(), HreError> {
        let words = [u32::from(app), milliseconds];
        self.send(wire::BEGIN_PROFILE, words.into_iter().flat_map(u32::to_le_bytes).collect()).await.map(drop)
    }

    /// What came to this endpoint's profile since it was read last.
    pub async fn read_profile(&self) -> Result<wire::ProfileReport, HreError> {
        self.json(wire::READ_PROFILE).await
    }

    /// This endpoint's profile ends.
    pub async fn end_profile(&self) -> Result<(), HreError> {
        self.send(wire::END_PROFILE, Vec::new()).await.map(drop)
    }

    /// Has an app be started anew for this endpoint to debug; a stop lasts so many milliseconds at most (0: without an end).
    pub async fn begin_debug(&self, app: u16, stop_ms_max: u32) -> Result<(), HreError> {
        let words = [u32::from(app), stop_ms_max];
        self.send(wire::BEGIN_DEBUG, words.into_iter().flat_map(u32::to_le_bytes).collect()).await.map(drop)
    }

    /// It is debugged no longer.
    pub async fn end_debug(&self, app: u16) -> Result<(), HreError> {
        self.send(wire::END_DEBUG, u32::from(app).to_le_bytes().to_vec()).await.map(drop)
    }

    /// Where its instances have stopped.
    pub async fn debug_state(&self, app: u16) -> Result<Vec<wire::DebugState>, HreError> {
        let bytes = self.read_checked(wire::DEBUG_STATE, &u32::from(app).to_le_bytes()).await?;
        serde_json::from_slice(&bytes).map_err(|error| HreError::Answer(error.to_string()))
    }

    async fn debug_query(&self, words: [u32; 5]) -> Result<Vec<u8>, HreError> {
        let arguments: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        self.read_checked(wire::DEBUG_QUERY, &arguments).await
    }

    /// The stack of a stopped instance, the innermost frame first.
    pub async fn debug_stack(&self, app: u16, spu: u16) -> Result<Vec<wire::StoppedFrame>, HreError> {
        let bytes = self.debug_query([app.into(), spu.into(), 1, 0, 0]).await?;
        serde_json::from_slice(&bytes).map_err(|error| HreError::Answer(error.to_string()))
    }

    /// The values of one of its frames.
    pub async fn debug_values(&self, app: u16, spu: u16, frame: u32) -> Result<wire::FrameValues, HreError> {
        let bytes = self.debug_query([app.into(), spu.into(), 2, frame, 0]).await?;
        serde_json::from_slice(&bytes).map_err(|error| HreError::Answer(error.to_string()))
    }

    /// Some of its memory; less where that ends.
    pub async fn debug_memory(&self, app: u16, spu: u16, (from, bytes): (u32, u32)) -> Result<Vec<u8>, HreError> {
        self.debug_query([app.into(), spu.into(), 3, from, bytes]).await
    }

    /// The module of an app that is debugged.
    pub async fn debug_module(&self, app: u16) -> Result<Vec<u8>, HreError> {
        self.debug_query([app.into(), 0, 4, 0, 0]).await
    }

    /// Tells an instance (`None`: all) what the debugger says: `words` as the control service has them.
    pub async fn debug_tell(&self, app: u16, spu: Option<u16>, words: &[u32]) -> Result<(), HreError> {
        let to = [u32::from(app), spu.map_or(u32::MAX, u32::from)];
        let payload = to.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        self.send(wire::DEBUG_TELL, payload).await.map(drop)
    }

    /// The text of an app's virtual serial port.
    pub async fn log(&self, name: &str) -> Result<String, HreError> {
        if name.len() > wire::LOG_NAME_BYTES_MAX {
            return Err(HreError::Argument(format!(
                "the log of an app can be read where its name has at most {} bytes",
                wire::LOG_NAME_BYTES_MAX
            )));
        }
        let text = self.read_checked(wire::LOG, name.as_bytes()).await?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Creates a namespace; returns its NSID.
    pub async fn create_namespace(&self, request: &NamespaceRequest) -> Result<u32, HreError> {
        let payload = serde_json::to_vec(request).map_err(|error| HreError::Argument(error.to_string()))?;
        self.send(wire::CREATE_NAMESPACE, payload).await
    }

    /// Deletes a namespace with all that is in it.
    pub async fn delete_namespace(&self, nsid: u32) -> Result<(), HreError> {
        self.send(wire::DELETE_NAMESPACE, nsid.to_le_bytes().to_vec()).await.map(|_| ())
    }

    /// Gives a block namespace another size, rounded up to whole stripes of all banks; durable when it returns. What it loses is gone.
    pub async fn resize_namespace(&self, nsid: u32, size_bytes: u64) -> Result<(), HreError> {
        let payload = [&nsid.to_le_bytes()[..], &size_bytes.to_le_bytes()].concat();
        self.send(wire::RESIZE_NAMESPACE, payload).await.map(drop)
    }

    /// The namespaces.
    pub async fn namespaces(&self) -> Result<Vec<NamespaceInfo>, HreError> {
        self.json(wire::LIST_NAMESPACES).await
    }

    /// The device's statistics as JSON.
    pub async fn statistics(&self) -> Result<serde_json::Value, HreError> {
        self.json(wire::STATISTICS).await
    }

    /// Adds permissions of a process.
    pub async fn grant(&self, process: u32, permissions: &[PermissionInfo]) -> Result<(), HreError> {
        for some in permissions.chunks(self.permissions_a_request()) {
            self.send(wire::GRANT, encode_permissions(process, None, some)).await?;
        }
        Ok(())
    }

    /// Adds permissions of a user's process; refused where the process with this number is another user's by now.
    pub async fn grant_to_user(
        &self,
        (process, user): (u32, u32),
        permissions: &[PermissionInfo],
    ) -> Result<(), HreError> {
        for some in permissions.chunks(self.permissions_a_request()) {
            self.send(wire::GRANT, encode_permissions(process, Some(user), some)).await?;
        }
        Ok(())
    }

    /// Permissions that one request carries.
    fn permissions_a_request(&self) -> usize {
        (self.hre.transfer_bytes_max().min(PERMISSIONS_BYTES_MAX) as usize).saturating_sub(8).max(24) / 24
    }

    /// Takes permissions of a process; when it returns, nothing that they allowed is under way any more.
    pub async fn revoke(&self, process: u32, permissions: &[PermissionInfo]) -> Result<(), HreError> {
        for some in permissions.chunks(self.permissions_a_request()) {
            self.send(wire::REVOKE, encode_permissions(process, None, some)).await?;
        }
        Ok(())
    }

    /// Takes all permissions of a process.
    pub async fn revoke_all(&self, process: u32) -> Result<(), HreError> {
        self.send(wire::REVOKE, encode_permissions(process, None, &[])).await.map(|_| ())
    }

    /// The permissions of a process that are in the tables now.
    pub async fn permissions(&self, process: u32) -> Result<Vec<PermissionInfo>, HreError> {
        let bytes = self.read_checked(wire::LIST_PERMISSIONS, &process.to_le_bytes()).await?;
        serde_json::from_slice(&bytes).map_err(|error| HreError::Answer(error.to_string()))
    }

    /// Makes a process known; its number.
    pub async fn open_process(&self, request: &ProcessRequest) -> Result<u32, HreError> {
        let payload = serde_json::to_vec(request).map_err(|error| HreError::Argument(error.to_string()))?;
        self.send(wire::OPEN_PROCESS, payload).await
    }

    /// Ends a process: its endpoints are closed, its permissions gone.
    pub async fn close_process(&self, process: u32) -> Result<(), HreError> {
        self.send(wire::CLOSE_PROCESS, process.to_le_bytes().to_vec()).await.map(|_| ())
    }

    /// Gives a user's processes their part of the processors beside others', for good (0: as if nothing had been said); with `process`, that
    /// one alone, while it lasts.
    pub async fn set_weight(&self, user: u32, process: Option<u32>, weight: u16) -> Result<(), HreError> {
        let words = [user, weight.into()].into_iter().chain(process);
        self.send(wire::SET_WEIGHT, words.flat_map(u32::to_le_bytes).collect()).await.map(|_| ())
    }

    /// Has this endpoint get an app's upcalls of a kind (1 to 255; 0: all), until it is closed.
    pub async fn subscribe(&self, app: u16, kind: u8) -> Result<(), HreError> {
        let words = [u32::from(app), u32::from(kind)];
        self.send(wire::SUBSCRIBE, words.into_iter().flat_map(u32::to_le_bytes).collect()).await.map(drop)
    }

    /// It gets them no longer.
    pub async fn unsubscribe(&self, app: u16, kind: u8) -> Result<(), HreError> {
        let words = [u32::from(app), u32::from(kind)];
        self.send(wire::UNSUBSCRIBE, words.into_iter().flat_map(u32::to_le_bytes).collect()).await.map(drop)
    }

    /// Which hosts namespaces are attached to; one that is not listed is open to every host.
    pub async fn attachments(&self) -> Result<Vec<Attachment>, HreError> {
        self.json(wire::LIST_ATTACHMENTS).await
    }

    /// Changes which hosts a namespace is attached to; durable when it returns.
    pub async fn change_attachment(&self, request: &AttachRequest) -> Result<(), HreError> {
        let payload = serde_json::to_vec(request)
            .map_err(|error| HreError::Argument(format!("the request for attachments: {error}")))?;
        self.send(wire::ATTACH, payload).await.map(drop)
    }

    /// Users' weights: (user, weight).
    pub async fn weights(&self) -> Result<Vec<(u32, u16)>, HreError> {
        self.json(wire::LIST_WEIGHTS).await
    }

    /// The processes that the device knows.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, HreError> {
        self.json(wire::LIST_PROCESSES).await
    }

    /// This endpoint becomes an agent's: upcalls about permission misses in these block namespaces (none named: in all that have no agent
    /// of their own), and about apps that end, come to it.
    pub async fn register_agent(&self, namespaces: &[u32]) -> Result<(), HreError> {
        let payload = namespaces.iter().flat_map(|nsid| nsid.to_le_bytes()).collect();
        self.send(wire::REGISTER_AGENT, payload).await.map(|_| ())
    }

    /// SPUs of the device, and the stripe of its block namespaces in bytes.
    pub async fn stripes(&self) -> Result<(u16, u32), HreError> {
        let result = self.send(wire::STRIPES, Vec::new()).await?;
        let stripe_bytes = 1u32.checked_shl(result >> 16);
        stripe_bytes.map(|bytes| (result as u16, bytes)).ok_or_else(|| HreError::Answer(format!("stripes {result:#x}")))
    }

    /// Changes the intercall table.
    pub async fn change_intercalls(&self, change: &IntercallChange) -> Result<(), HreError> {
        let payload = serde_json::to_vec(change).map_err(|error| HreError::Argument(error.to_string()))?;
        self.send(wire::CHANGE_INTERCALLS, payload).await.map(|_| ())
    }

    /// The intercall table.
    pub async fn intercalls(&self) -> Result<Vec<Intercall>, HreError> {
        self.json(wire::LIST_INTERCALLS).await
    }

    async fn json<T: for<'a> serde::Deserialize<'a>>(&self, handler: u8) -> Result<T, HreError> {
        let bytes = self.read_checked(handler, &[]).await?;
        serde_json::from_slice(&bytes).map_err(|error| HreError::Answer(error.to_string()))
    }
}

fn encode_permissions(process: u32, user: Option<u32>, permissions: &[PermissionInfo]) -> Vec<u8> {
    let mut body = Vec::with_capacity(8 + 24 * permissions.len());
    body.extend(process.to_le_bytes());
    // The highest number is no user's.
    body.extend(user.map_or(0, |user| user.saturating_add(1)).to_le_bytes());
    for permission in permissions {
        body.extend(u32::from(permission.spu).to_le_bytes());
        body.extend(permission.rights.to_le_bytes());
        body.extend(permission.start.to_le_bytes());
        body.extend(permission.bytes.to_le_bytes());
    }
    body
}
