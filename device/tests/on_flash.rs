//! Tests of the device that are written for any medium, on banks of flash behind an FTL (preset `jasmine`, FTL `page`): each is the one of its own
//! file, where it runs on NV memory.

#[path = "core.rs"]
mod core_requests;
#[path = "host_work.rs"]
mod host_work;
#[path = "hostile.rs"]
mod hostile;
#[path = "own_time.rs"]
mod own_time;
#[path = "protection.rs"]
mod protection;
#[path = "settling.rs"]
mod settling;
#[path = "subscriptions.rs"]
mod subscriptions;
#[path = "waiting.rs"]
mod waiting;
