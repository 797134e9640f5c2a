//! Reservations of namespaces (NVM Express Base Specification, "Reservations"): which hosts have registered, who holds which
//! reservation, and what each action makes of that. A pure function of the state; nothing here knows of queues or saves.
//!
//! What always holds:
//! - an action that is refused changes nothing;
//! - only a registrant holds a reservation; without registrants there is none;
//! - one host is one registrant, whatever controllers it has.

use serde::{Deserialize, Serialize};

/// Most hosts registered with a namespace.
pub const REGISTRANTS_MAX: usize = 64;

/// Types of reservations (RTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum ReservationType {
    /// The holder alone writes.
    WriteExclusive = 1,
    /// The holder alone reads and writes.
    ExclusiveAccess = 2,
    /// Registrants alone write; one host holds it.
    WriteExclusiveRegistrantsOnly = 3,
    /// Registrants alone read and write; one host holds it.
    ExclusiveAccessRegistrantsOnly = 4,
    /// Registrants alone write; all hold it.
    WriteExclusiveAllRegistrants = 5,
    /// Registrants alone read and write; all hold it.
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationType {
    /// From RTYPE.
    pub fn from_number(number: u8) -> Option<Self> {
        use ReservationType::*;
        let all = [
            WriteExclusive,
            ExclusiveAccess,
            WriteExclusiveRegistrantsOnly,
            ExclusiveAccessRegistrantsOnly,
            WriteExclusiveAllRegistrants,
            ExclusiveAccessAllRegistrants,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }

    fn is_of_all(self) -> bool {
        self as u8 >= 5
    }

    fn is_exclusive_access(self) -> bool {
        matches!(self as u8, 2 | 4 | 6)
    }

    fn is_of_holder_alone(self) -> bool {
        self as u8 <= 2
    }
}

/// A registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registrant {
    /// Its host identifier (HOSTID).
    pub host: [u8; 16],
    /// Its reservation key.
    pub key: u64,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Its type.
    pub kind: ReservationType,
    /// Who acquired it; where all registrants hold it, this means nothing.
    pub host: [u8; 16],
}

/// Registrations and reservation of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// NSID.
    pub nsid: u32,
    /// Generation (GEN): counts changes of who is registered with which key.
    pub generation: u32,
    /// It outlives a loss of power (PTPL).
    pub persistent: bool,
    /// In the order of their registration.
    pub registrants: Vec<Registrant>,
    /// The reservation, where one is held.
    pub held: Option<Held>,
}

/// What a registrant is told of another host's action (types of notices of LID 80h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NoticeKind {
    /// Its registration was preempted.
    RegistrationPreempted = 1,
    /// A reservation that it shared was released.
    ReservationReleased = 2,
    /// All registrations were cleared.
    ReservationPreempted = 3,
}

/// A notice to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The namespace.
    pub nsid: u32,
    /// Whom it is for.
    pub host: [u8; 16],
    /// What happened.
    pub kind: NoticeKind,
}

/// Most notices that are kept for those who look; of more, the newest.
pub const TOLD_MAX: usize = 4096;

/// The newest notices, numbered from the device's start on. Several actions may become durable between two looks: each has its own notices here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    notices: Vec<Notice>,
    count: u64,
}

impl Told {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Those behind the first `seen`, as far as they are kept.
    pub fn since(&self, seen: u64) -> &[Notice] {
        let fresh = self.count.saturating_sub(seen).min(self.notices.len() as u64) as usize;
        &self.notices[self.notices.len() - fresh..]
    }

    /// These and `more`.
    pub(crate) fn and(&self, mut more: Vec<Notice>) -> Told {
        let count = self.count + more.len() as u64;
        let room = TOLD_MAX.saturating_sub(more.len()).min(self.notices.len());
        more.drain(..more.len().saturating_sub(TOLD_MAX));
        let mut notices = self.notices[self.notices.len() - room..].to_vec();
        notices.append(&mut more);
        Told { notices, count }
    }
}

/// What a host asks for. Keys are those of its data (CRKEY, NRKEY, PRKEY).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationAction {
    /// Register with a key.
    Register {
        /// The new key.
        key: u64,
    },
    /// End the registration; `current` is left out where the key need not be known (IEKEY).
    Unregister {
        /// The key that it has.
        current: Option<u64>,
    },
    /// Change the key.
    Replace {
        /// The key that it has, unless it need not be known.
        current: Option<u64>,
        /// The new key.
        key: u64,
    },
    /// Acquire a reservation.
    Acquire {
        /// The host's key.
        current: u64,
        /// The type.
        kind: ReservationType,
    },
    /// End the registrations with a key, and take the reservation where they held it.
    Preempt {
        /// The host's key.
        current: u64,
        /// Whose.
        preempted: u64,
        /// The type of what is taken.
        kind: ReservationType,
    },
    /// Give the reservation up.
    Release {
        /// The host's key.
        current: u64,
        /// The type that is held.
        kind: ReservationType,
    },
    /// End all registrations.
    Clear {
        /// The host's key.
        current: u64,
    },
    /// Change nothing but what [`ReserveRequest::persistent`] asks for (Set Features, Reservation Persistence).
    Persist,
}

/// An action of a host on a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// The namespace.
    pub nsid: u32,
    /// Further namespaces, for [`ReservationAction::Persist`] alone: all of them change, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<u32>,
    /// Host identifier of who asks.
    pub host: [u8; 16],
    /// What.
    pub action: ReservationAction,
    /// Whether all of it is to outlive a loss of power; left out: as it is (CPTPL).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

/// Why an action is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationError {
    /// Reservation Conflict.
    Conflict,
    /// The values make no sense together.
    Malformed,
    /// [`REGISTRANTS_MAX`] hosts are registered.
    Full,
}

/// What a command does to a namespace, as reservations see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It changes, or flushes.
    Write,
}

impl Reservation {
    /// Whether a host may do that.
    #[inline]
    pub fn permits(&self, host: &[u8; 16], access: Access) -> bool {
        let Some(held) = &self.held else { return true };
        if access == Access::Read && !held.kind.is_exclusive_access() {
            return true;
        }
        match held.kind.is_of_holder_alone() {
            true => held.host == *host,
            false => self.is_registered(host),
        }
    }

    /// Whether a host is registered.
    pub fn is_registered(&self, host: &[u8; 16]) -> bool {
        self.registrants.iter().any(|one| one.host == *host)
    }

    /// Whether a host holds the reservation.
    pub fn is_holder(&self, host: &[u8; 16]) -> bool {
        self.held.is_some_and(|held| if held.kind.is_of_all() { self.is_registered(host) } else { held.host == *host })
    }

    /// Does what a host asks for, and says what other hosts are to be told of it.
    pub fn apply(&mut self, request: &ReserveRequest) -> Result<Vec<Notice>, ReservationError> {
        let host = request.host;
        let mut next = self.clone();
        match request.action {
            ReservationAction::Register { key } => match next.key_of(&host) {
                Some(registered) if registered == key => {}
                Some(_) => return Err(ReservationError::Conflict),
                None if next.registrants.len() == REGISTRANTS_MAX => return Err(ReservationError::Full),
                None => {
                    next.registrants.push(Registrant { host, key });
                    next.count();
                }
            },
            ReservationAction::Unregister { current } => {
                next.check(&host, current)?;
                next.remove(|one| one.host == host);
                next.count();
            }
            ReservationAction::Replace { current, key } => {
                next.check(&host, current)?;
                next.registrants.iter_mut().filter(|one| one.host == host).for_each(|one| one.key = key);
                next.count();
            }
            ReservationAction::Acquire { current, kind } => {
                next.check(&host, Some(current))?;
                match next.held {
                    None => next.held = Some(Held { kind, host }),
                    Some(held) if next.is_holder(&host) && held.kind == kind => {}
                    Some(_) => return Err(ReservationError::Conflict),
                }
            }
            ReservationAction::Preempt { current, preempted, kind } => {
                next.check(&host, Some(current))?;
                next.preempt(&host, preempted, kind)?;
            }
            ReservationAction::Release { current, kind } => {
                next.check(&host, Some(current))?;
                if next.is_holder(&host) {
                    if next.held.is_some_and(|held| held.kind != kind) {
                        return Err(ReservationError::Malformed);
                    }
                    next.held = None;
                }
            }
            ReservationAction::Clear { current } => {
                next.check(&host, Some(current))?;
                (next.registrants, next.held) = (Vec::new(), None);
                next.count();
            }
            ReservationAction::Persist => {}
        }
        next.persistent = request.persistent.unwrap_or(next.persistent);
        let before = std::mem::replace(self, next);
        let others = before.registrants.iter().filter(|one| one.host != host);
        let notices = others.filter_map(|one| {
            Some(Notice { nsid: self.nsid, host: one.host, kind: self.notice_of(&one.host, before.held)? })
        });
        Ok(notices.collect())
    }

    /// What a registrant of before is to be told of the last action; `held`: what was held before.
    fn notice_of(&self, host: &[u8; 16], held: Option<Held>) -> Option<NoticeKind> {
        if self.registrants.is_empty() {
            return Some(NoticeKind::ReservationPreempted);
        }
        if !self.is_registered(host) {
            return Some(NoticeKind::RegistrationPreempted);
        }
        let was_shared = held.is_some_and(|held| !held.kind.is_of_holder_alone());
        (was_shared && self.held.is_none()).then_some(NoticeKind::ReservationReleased)
    }

    fn preempt(&mut self, host: &[u8; 16], preempted: u64, kind: ReservationType) -> Result<(), ReservationError> {
        let (host, all) = (*host, self.held.is_some_and(|held| held.kind.is_of_all()));
        if preempted == 0 && !all {
            return Err(ReservationError::Malformed);
        }
        if preempted != 0 && !self.registrants.iter().any(|one| one.key == preempted) {
            return Err(ReservationError::Conflict);
        }
        // Zero takes what all registrants hold from all others; the holder's key takes it from the holder.
        let takes = match self.held {
            Some(held) if !all => self.key_of(&held.host) == Some(preempted),
            _ => all && preempted == 0,
        };
        self.remove(|one| one.host != host && (preempted == 0 || one.key == preempted));
        // A host that names its own key, and takes nothing by that, ends its own registration.
        if !takes && self.key_of(&host) == Some(preempted) {
            self.remove(|one| one.host == host);
        }
        if takes {
            self.held = Some(Held { kind, host });
        }
        self.count();
        Ok(())
    }

    /// Ends registrations, and the reservation with those that held it.
    fn remove(&mut self, of: impl Fn(&Registrant) -> bool) {
        self.registrants.retain(|one| !of(one));
        let lasts = |held: &Held| match held.kind.is_of_all() {
            true => !self.registrants.is_empty(),
            false => self.registrants.iter().any(|one| one.host == held.host),
        };
        self.held = self.held.filter(lasts);
    }

    fn key_of(&self, host: &[u8; 16]) -> Option<u64> {
        self.registrants.iter().find(|one| one.host == *host).map(|one| one.key)
    }

    /// The host is registered, with that key unless it need not be known.
    fn check(&self, host: &[u8; 16], current: Option<u64>) -> Result<(), ReservationError> {
        match self.key_of(host) {
            Some(key) if current.is_none_or(|current| current == key) => Ok(()),
            _ => Err(ReservationError::Conflict),
        }
    }

    fn count(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests;
