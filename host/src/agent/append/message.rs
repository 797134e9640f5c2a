//! What a process says to Append's part of the agent, and what it is told.
//!
//! ```text
//! process                                      agent
//! Prepare, with a descriptor that writes  ->   judges it, keeps a mere path to the file
//!                                         <-   Prepared
//! closes all descriptors of the file;
//! Begin                                   ->   proves that nobody has the file open; the device has its length from now on
//!                                         <-   Begun
//! appends by the device; when that refuses: Begin
//! End                                     ->   the file has its length, and is the file system's own
//! ```

use serde::{Deserialize, Serialize};

/// What a process asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// To append to the file whose descriptor comes with the message.
    Prepare,
    /// Appending by the device, by what was proved; the process has no descriptor of the file but mere paths.
    Begin {
        /// As in [`Told::Prepared`].
        file: u64,
    },
    /// The process appends no more by what it proved.
    End {
        /// As in [`Told::Prepared`].
        file: u64,
    },
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// The descriptor proves the right to append.
    Prepared {
        /// The file's number in the device.
        file: u64,
    },
    /// The device appends for the process.
    Begun {
        /// Number of the app.
        app: u16,
        /// SPUs of the device.
        spus: u16,
        /// The file's length, all of it durable.
        length: u64,
    },
    /// It is the file system's own, unless others still append.
    Ended,
}
