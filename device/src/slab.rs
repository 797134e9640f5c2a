//! A bounded table whose keys say when they are stale: the low 16 bits of a key are the place, the 15 bits above count
//! how often the place was taken (so a key is a positive i32). Guests and other parties hand keys back; a forged or outdated key finds nothing.

/// Most entries of a table.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;

const GENERATION_MAX: u16 = 0x7fff;

struct Entry<T> {
    generation: u16,
    value: Option<T>,
}

/// The table.
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u16>,
    limit: usize,
    len: usize,
    /// A planted weakness: a key is good again for what has the place next.
    #[cfg(feature = "testing")]
    pub reuses_keys: bool,
}

impl<T> Slab<T> {
    /// An empty table for at most `limit` entries.
    pub fn new(limit: usize) -> Self {
        assert!(limit <= ENTRIES_MAX);
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            limit,
            len: 0,
            #[cfg(feature = "testing")]
            reuses_keys: false,
        }
    }

    /// Puts `value` in; gives it back where the table is full.
    #[inline]
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        if self.has_room() { Ok(self.put(|| value)) } else { Err(value) }
    }

    /// True where one more fits.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.len < self.limit
    }

    /// Puts `value` in, where [`Slab::has_room`]. (It is made where it will lie: a copy of a large one that was just made waits for its
    /// parts to be written.)
    #[inline(always)]
    pub fn put(&mut self, value: impl FnOnce() -> T) -> u32 {
        let (key, place) = self.reserve();
        // The slot is empty here, so skip the drop that the compiler would emit.
        std::mem::forget(place.replace(value()));
        key
    }

    /// Takes a place, where [`Slab::has_room`], that is empty and to be filled at once; and its key.
    #[inline(always)]
    pub fn reserve(&mut self) -> (u32, &mut Option<T>) {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.another_place(),
        };
        let entry = &mut self.entries[place as usize];
        self.len += 1;
        (u32::from(entry.generation) << 16 | u32::from(place), &mut entry.value)
    }

    #[cold]
    fn another_place(&mut self) -> u16 {
        assert!(self.entries.len() < self.limit, "the table is full");
        self.entries.push(Entry { generation: 1, value: None });
        (self.entries.len() - 1) as u16
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry of a key.
    #[inline]
    pub fn get_mut(&mut self, key: u32) -> Option<&mut T> {
        let entry = self.entries.get_mut((key & 0xffff) as usize)?;
        if u32::from(entry.generation) != key >> 16 {
            return None;
        }
        entry.value.as_mut()
    }

    /// The entry of a key.
    #[inline]
    pub fn get(&self, key: u32) -> Option<&T> {
        let entry = self.entries.get((key & 0xffff) as usize)?;
        if u32::from(entry.generation) != key >> 16 {
            return None;
        }
        entry.value.as_ref()
    }

    /// Takes the entry of a key out.
    #[inline]
    pub fn remove(&mut self, key: u32) -> Option<T> {
        let place = (key & 0xffff) as usize;
        let entry = self.entries.get_mut(place)?;
        if u32::from(entry.generation) != key >> 16 {
            return None;
        }
        let value = entry.value.take()?;
        self.freed(place);
        Some(value)
    }

    /// Ends the entry of a key, where it lies.
    #[inline(always)]
    pub fn discard(&mut self, key: u32) {
        let place = (key & 0xffff) as usize;
        let Some(entry) = self.entries.get_mut(place) else { return };
        if u32::from(entry.generation) != key >> 16 || entry.value.is_none() {
            return;
        }
        entry.value = None;
        self.freed(place);
    }

    #[inline]
    fn freed(&mut self, place: usize) {
        let entry = &mut self.entries[place];
        entry.generation = (entry.generation + 1) % (GENERATION_MAX + 1);
        entry.generation = entry.generation.max(1);
        self.free.push(place as u16);
        self.len -= 1;
        #[cfg(feature = "testing")]
        if self.reuses_keys {
            self.entries[place].generation = 1;
        }
    }

    /// All entries with their keys, in order of place.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let key = |place: usize, entry: &Entry<T>| u32::from(entry.generation) << 16 | place as u32;
        let entries = self.entries.iter().enumerate();
        entries.filter_map(move |(place, entry)| Some((key(place, entry), entry.value.as_ref()?)))
    }

    /// The entries at some places, with their keys: what that takes does not depend on how many places there are.
    pub fn iter_at(&self, places: std::ops::Range<usize>) -> impl Iterator<Item = (u32, &T)> {
        let end = places.end.min(self.entries.len());
        let first = places.start.min(end);
        let key = move |place: usize, entry: &Entry<T>| u32::from(entry.generation) << 16 | (first + place) as u32;
        let entries = self.entries[first..end].iter().enumerate();
        entries.filter_map(move |(place, entry)| Some((key(place, entry), entry.value.as_ref()?)))
    }

    /// Places that have ever been taken.
    pub fn places(&self) -> usize {
        self.entries.len()
    }

    /// Keys of all entries, in order of place.
    pub fn keys(&self) -> Vec<u32> {
        self.iter().map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_keys_find_nothing() {
        let mut slab = Slab::new(2);
        let first = slab.insert('a').unwrap();
        let second = slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), Err('c'));
        assert_eq!(slab.remove(first), Some('a'));
        let third = slab.insert('c').unwrap();
        assert_eq!(third & 0xffff, first & 0xffff);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.get(second), slab.get(third)), (Some(&'b'), Some(&'c')));
        assert_eq!((slab.len(), slab.keys().len()), (2, 2));
    }
}
