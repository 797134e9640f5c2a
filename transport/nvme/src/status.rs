//! Failures of commands, and how the outcomes of RPCs become status codes.
//!
//! Every failure that sending the same command again cannot cure has Do Not Retry set (NVMe Base 4.2.3).

use willow_device::RpcOutcome;
use willow_wire::spec::{Status, tunnel};

/// Status of an RPC of the tunnel that no handler answered.
pub fn of_outcome(outcome: RpcOutcome) -> Status {
    match outcome {
        RpcOutcome::Answered { .. } => Status::SUCCESS,
        RpcOutcome::NoApp => tunnel::status::NO_APP.with_do_not_retry(),
        RpcOutcome::NoHandler => tunnel::status::NO_HANDLER.with_do_not_retry(),
        RpcOutcome::NoSpu => tunnel::status::NO_SPU.with_do_not_retry(),
        RpcOutcome::Refused => tunnel::status::REFUSED,
        RpcOutcome::AppEnded => tunnel::status::APP_ENDED.with_do_not_retry(),
        RpcOutcome::NotPermitted => tunnel::status::NOT_PERMITTED.with_do_not_retry(),
        RpcOutcome::Aborted => Status::ABORT_REQUESTED,
    }
}

/// True for the errors that SMART counts as media's (compare failures and denials are none).
pub fn is_media_error(status: Status) -> bool {
    status.is(Status::WRITE_FAULT)
        || status.is(Status::UNRECOVERED_READ_ERROR)
        || status.is(Status::KV_UNRECOVERED_ERROR)
}

/// True where a command was done and this is what came of it: a key that is not there, or is there already, is no failure, is not logged
/// and not counted as one.
pub fn is_answer(status: Status) -> bool {
    status.is(Status::KV_KEY_NOT_FOUND) || status.is(Status::KV_KEY_EXISTS)
}

/// Why a command fails before anything is done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Status to answer with.
    pub status: Status,
    /// First byte of the field of the command that is wrong (error log, Parameter Error Location), or FFFFh.
    pub byte: u16,
    /// Completion DW0 (Connect: where the invalid parameter is).
    pub result: u32,
}

impl Failure {
    /// A failure for good that the field at `byte` of the submission queue entry causes.
    pub const fn at(status: Status, byte: u16) -> Failure {
        Failure { status: status.with_do_not_retry(), byte, result: 0 }
    }
    /// The field at `byte` has a value that is not supported.
    pub const fn field(byte: u16) -> Failure {
        Failure::at(Status::INVALID_FIELD, byte)
    }
    /// A failure for good that no single field causes.
    pub const fn of(status: Status) -> Failure {
        Failure::at(status, 0xffff)
    }
    /// A failure that may not happen when the command is sent again.
    pub const fn retryable(status: Status) -> Failure {
        Failure { status, byte: 0xffff, result: 0 }
    }
    /// The same with a result.
    pub const fn with_result(self, result: u32) -> Failure {
        Failure { result, ..self }
    }
}
