//! Ends a server cleanly.
//!
//! What always holds: commands under way end or their time does, and the device is shut down after the last connection.

use std::time::{Duration, Instant};

use super::Server;
use crate::config::*;
use crate::handle::ServeError;
use willow_nvme::Backend;

impl<B: Backend> Server<B> {
    /// Stops: no new connections or commands, what is under way ends, the device shuts down.
    pub(super) fn wind_down(&mut self) -> Result<(), ServeError> {
        tracing::info!(connections = self.open, "stopping");
        self.listeners.clear();
        let begun = Instant::now();
        while begun.elapsed() < DRAIN_LIMIT && self.subsystem.in_device() > 0 {
            self.turn();
        }
        self.work();
        for index in 0..self.connections.len() {
            self.close(index, "the server stops");
        }
        self.subsystem.backend_mut().shutdown();
        let begun = Instant::now();
        while !self.subsystem.backend().is_shut_down() {
            if begun.elapsed() > SHUTDOWN_LIMIT {
                return Err(ServeError::Shutdown);
            }
            self.turn();
        }
        Ok(())
    }

    /// A turn without receiving, for winding down.
    fn turn(&mut self) {
        self.tick();
        if self.shared.wake.take() {
            self.answer_others();
        }
        let (worked, _) = self.work();
        if !worked {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}
