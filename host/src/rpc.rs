//! RPCs to one app by its name.

use crate::control::ControlClient;
use crate::hre::{Hre, HreError, RpcCall, RpcReply};
use std::sync::Arc;

/// An app, found by name.
#[derive(Clone)]
pub struct AppClient {
    hre: Arc<dyn Hre>,
    app: u16,
}

impl AppClient {
    /// Finds an app by its name (kernel endpoints only: the control service is asked).
    pub async fn find(hre: Arc<dyn Hre>, name: &str) -> Result<Self, HreError> {
        let app = ControlClient::new(hre.clone()).find_app(name).await?;
        Ok(AppClient { hre, app })
    }

    /// An app by its number.
    pub fn new(hre: Arc<dyn Hre>, app: u16) -> Self {
        AppClient { hre, app }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.app
    }

    /// Sends a body; no reply data come back, only status and result.
    pub async fn send(&self, handler: u8, spu: Option<u16>, body: Vec<u8>) -> Result<RpcReply, HreError> {
        let call = RpcCall { app: self.app, handler, spu, payload: body, ..RpcCall::default() };
        self.hre.rpc(call).await
    }

    /// Sends up to 24 argument bytes and takes up to `reply_bytes_max` bytes of reply.
    pub async fn call(
        &self,
        handler: u8,
        spu: Option<u16>,
        arguments: &[u8],
        reply_bytes_max: u32,
    ) -> Result<RpcReply, HreError> {
        let arguments = arguments.to_vec();
        self.hre.rpc(RpcCall { app: self.app, handler, spu, arguments, payload: Vec::new(), reply_bytes_max }).await
    }
}
