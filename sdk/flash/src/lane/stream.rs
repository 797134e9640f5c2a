//! Writing in order: the two streams of data, each into a block of its own.
//!
//! What always holds: a stream has one program under way, by who holds its lock; no other lock is taken meanwhile. A page counts in the map
//! from the moment at which its program has ended, and `next_page` of the stream is past it from the same moment.

use super::program::{Programmed, UnitSource};
use super::records::{PageHeader, PageKind, Record, encode_page};
use super::state::{BlockState, Headers, Place, STREAMS, State, Stream};
use super::{ATTEMPTS_MAX, COLLECTION_BLOCKS, Failure, Lane};
use crate::Planted;
use crate::header::{Header, Kind, NONE, Previous};
use crate::port::FlashPort;
use crate::wait::Guard;
use alloc::vec::Vec;

enum Step {
    Open(Place),
    WaitForRoom,
    Reserve,
}

impl<P: FlashPort> Lane<P> {
    /// The place where the stream's next page goes, and the stream's lock.
    async fn open_stream(&self, stream: Stream) -> Result<(Guard<'_>, Place), Failure> {
        loop {
            let guard = self.stream_locks[stream as usize].lock().await;
            let (place, data_pages) = {
                let state = self.state();
                if state.read_only && stream == Stream::Host {
                    return Err(Failure::ReadOnly);
                }
                (state.streams[stream as usize], state.data_pages())
            };
            match place {
                Some(place) if place.next_page < data_pages => return Ok((guard, place)),
                Some(place) => self.close_stream(stream, place).await?,
                None => {}
            }
            let step = self.next_block(stream)?;
            match step {
                Step::Open(place) => {
                    if self.erase_block(place.block).await? {
                        return Ok((guard, place));
                    }
                    self.state().streams[stream as usize] = None;
                    self.free_block(place.block);
                }
                Step::WaitForRoom => {
                    let room = self.room.wait();
                    drop(guard);
                    self.work.notify();
                    room.await;
                }
                Step::Reserve => {
                    drop(guard);
                    self.sync(stream, true).await?;
                }
            }
        }
    }

    /// Takes a reserved block for the stream: the least worn one for what the host writes, the most worn one for what is moved, since that is
    /// colder.
    fn next_block(&self, stream: Stream) -> Result<Step, Failure> {
        let mut state = self.state();
        let state = &mut *state;
        let free = state.free();
        if stream == Stream::Host && free <= COLLECTION_BLOCKS {
            return Ok(Step::WaitForRoom);
        }
        if free == 0 {
            state.read_only = true;
            return Err(Failure::ReadOnly);
        }
        let wear = |index: &usize| (state.erase_counts[state.reserved[*index] as usize], state.reserved[*index]);
        let chosen = match stream {
            Stream::Host => (0..state.reserved.len()).min_by_key(wear),
            Stream::Collection => (0..state.reserved.len()).max_by_key(wear),
        };
        let Some(chosen) = chosen else { return Ok(Step::Reserve) };
        let block = state.reserved.swap_remove(chosen);
        let place = Place { block, block_sequence: state.block_sequences[block as usize], next_page: 0 };
        // Open before it is erased, so that a checkpoint that is taken meanwhile knows of it.
        state.states[block as usize] = BlockState::Open;
        state.streams[stream as usize] = Some(place);
        if !self.layout.geometry.spare_accessible {
            state.headers.insert(block, Headers { block_sequence: place.block_sequence, ..Headers::default() });
        }
        state.blocks_opened += 1;
        if state.blocks_opened >= self.config.blocks_between_checkpoints {
            state.checkpoint_wanted = true;
        }
        if free <= self.config.collect_below || state.checkpoint_wanted {
            self.work.notify();
        }
        Ok(Step::Open(place))
    }

    /// Ends the stream's block, with a summary where firmware does not reach the spare area.
    async fn close_stream(&self, stream: Stream, place: Place) -> Result<(), Failure> {
        let mut summarised = false;
        if !self.layout.geometry.spare_accessible {
            let mut page = Vec::new();
            {
                let state = self.state();
                let headers = &state.headers[&place.block];
                let mut payload = Vec::new();
                let entries = headers.entries.clone();
                let record = Record::Headers {
                    block: place.block,
                    block_sequence: place.block_sequence,
                    first_page: 0,
                    entries,
                };
                record.encode(&mut payload);
                let header = PageHeader {
                    kind: PageKind::Summary,
                    lane: self.layout.lane as u16,
                    serial: 0,
                    block_sequence: place.block_sequence,
                    next: [(NONE, 0); 3],
                };
                encode_page(&header, &payload, &mut page, &self.layout);
            }
            let place = Place { next_page: self.layout.geometry.pages_per_block - 1, ..place };
            let header = Header {
                kind: Kind::Metadata,
                logical: NONE,
                sequence: 0,
                block_sequence: place.block_sequence,
                part: 0,
                previous: Previous::NOTHING,
            };
            match self.program_unit(place, UnitSource::Local(&page), header).await {
                Programmed::Done => summarised = true,
                Programmed::Failed => self.work.notify(),
                Programmed::Misuse(reason) => return Err(Failure::Misuse(reason)),
                _ => return Err(Failure::Misuse("a program from local memory lost its source")),
            }
        }
        let mut state = self.state();
        state.counters.metadata_pages += u64::from(summarised);
        if summarised {
            state.headers.remove(&place.block);
        }
        state.streams[stream as usize] = None;
        state.close(place.block);
        Ok(())
    }

    /// The page at the stream's place is programmed.
    fn advance(&self, state: &mut State, stream: Stream, place: Place, unit: u32, sequence: u64) {
        if let Some(open) = &mut state.streams[stream as usize] {
            debug_assert_eq!(*open, place);
            open.next_page += 1;
        }
        state.remembered.note(place.block * state.pages() + place.next_page, unit, sequence);
        if let Some(headers) = state.headers.get_mut(&place.block) {
            debug_assert_eq!(headers.entries.len() as u32, place.next_page);
            headers.entries.push((unit, sequence));
        }
    }

    /// Writes a logical page at the end of the stream. `sequence` is that of a copy; a new one where there is none. `source` is asked once the place
    /// is there (`None`: nothing is to be written any more); `commit` is called at the moment at which the page is there.
    pub(crate) async fn append<'a>(
        &self,
        stream: Stream,
        unit: u32,
        sequence: Option<u64>,
        source: impl Fn(&State) -> Result<Option<UnitSource<'a>>, Failure>,
        commit: impl FnOnce(&mut State, u32),
    ) -> Result<(), Failure> {
        let mut attempts = 0;
        while attempts < ATTEMPTS_MAX {
            let (guard, place) = self.open_stream(stream).await?;
            if stream == Stream::Host && self.state().moving == Some(unit) {
                let settled = self.settled.wait();
                drop(guard);
                settled.await;
                continue;
            }
            attempts += 1;
            let (source, sequence, previous) = {
                let mut state = self.state();
                let Some(source) = source(&state)? else { return Ok(()) };
                if let Some(address) = source.pinned() {
                    state.pin(address);
                }
                let sequence = sequence.unwrap_or_else(|| state.next_sequence());
                if stream == Stream::Host {
                    state.writing = Some((unit, sequence));
                }
                (source, sequence, state.previous[stream as usize])
            };
            let header = Header {
                kind: Kind::Data,
                logical: unit,
                sequence,
                block_sequence: place.block_sequence,
                part: 0,
                previous,
            };
            let programmed = self.program_unit(place, source, header).await;
            {
                let mut state = self.state();
                if let Some(address) = source.pinned() {
                    state.unpin(address);
                }
                if stream == Stream::Host {
                    state.writing = None;
                }
            }
            self.settled.notify();
            match programmed {
                Programmed::Done => {
                    let mut state = self.state();
                    self.advance(&mut state, stream, place, unit, sequence);
                    let address = place.block * state.pages() + place.next_page;
                    state.previous[stream as usize] =
                        Previous { logical: unit, sequence, address, block_sequence: place.block_sequence };
                    commit(&mut state, address);
                    return Ok(());
                }
                Programmed::Failed => self.abandon(stream, place),
                Programmed::Misuse(reason) => return Err(Failure::Misuse(reason)),
                Programmed::SourceLost { consumed } | Programmed::PeerEnded { consumed } => {
                    if consumed {
                        let mut state = self.state();
                        self.advance(&mut state, stream, place, NONE, 0);
                        state.counters.filler_pages += 1;
                    }
                    let is_peers = matches!(programmed, Programmed::PeerEnded { .. });
                    return Err(if is_peers { Failure::PeerEnded } else { Failure::Media });
                }
            }
        }
        self.give_up();
        Err(Failure::ReadOnly)
    }

    /// A program in the stream's block has failed: the block takes no more, and is to be collected first.
    fn abandon(&self, stream: Stream, place: Place) {
        let mut state = self.state();
        state.streams[stream as usize] = None;
        state.close(place.block);
        self.work.notify();
    }

    /// Programs fillers until no later program endangers what the streams have written.
    pub(crate) async fn settle_streams(&self) -> Result<(), Failure> {
        let geometry = self.layout.geometry;
        if geometry.paired_distance == 0 || self.has(Planted::UnsettledFlush) {
            return Ok(());
        }
        for stream in STREAMS {
            // Without a block there is nothing to settle, and its lock may be held by who waits for one.
            let unsettled = |place: &Place| geometry.settled_from(place.next_page) != place.next_page;
            if self.state().streams[stream as usize].filter(unsettled).is_none() {
                continue;
            }
            let _guard = self.stream_locks[stream as usize].lock().await;
            loop {
                let Some(place) = self.state().streams[stream as usize].filter(unsettled) else { break };
                if place.next_page == self.state().data_pages() {
                    self.close_stream(stream, place).await?;
                    break;
                }
                let header = Header {
                    kind: Kind::Filler,
                    logical: NONE,
                    sequence: 0,
                    block_sequence: place.block_sequence,
                    part: 0,
                    // The page before may rot, and only what follows it tells of it.
                    previous: self.state().previous[stream as usize],
                };
                match self.program_unit(place, UnitSource::Zeroes, header).await {
                    Programmed::Done => {
                        let mut state = self.state();
                        self.advance(&mut state, stream, place, NONE, 0);
                        state.counters.filler_pages += 1;
                    }
                    Programmed::Failed => self.abandon(stream, place),
                    Programmed::Misuse(reason) => return Err(Failure::Misuse(reason)),
                    _ => return Err(Failure::Misuse("a program of zeroes lost its source")),
                }
            }
        }
        Ok(())
    }
}
