//! Items under stable numbers: the znodes of the tree, and the locks of the index. A lookup takes a few
//! steps, independent of the number of items. A number stays valid until the removal of its item.
//!
//! Blocks contain pages of items behind `Arc`s: a clone costs one reference per block, and a change after a
//! clone copies one page and the list of pages of its block.
//!
//! Invariant: numbers are local to this node. A node that has loaded a snapshot has other numbers than the
//! writer, so no log, snapshot or digest contains numbers, and no order depends on numbers.

use triomphe::Arc;

/// Items per page: few, since the first change after a clone copies a page.
const PAGE: usize = 16;
const PAGES: usize = 64;

/// Number of an item: its block, page and index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Number(u32);

impl Number {
    /// Number of the first item.
    pub(crate) const FIRST: Number = Number(0);

    fn new(block: usize, page: usize, at: usize) -> Self {
        let id = (block * PAGES + page) * PAGE + at;
        Number(u32::try_from(id).expect("Invariant: four thousand million things do not fit into memory"))
    }

    fn indices(self) -> (usize, usize, usize) {
        let id = self.0 as usize;
        (id / (PAGE * PAGES), id / PAGE % PAGES, id % PAGE)
    }

    /// Returns the value for [`Number::from_raw`].
    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// Returns the number of this raw value, possibly without an item.
    pub(crate) fn from_raw(number: u32) -> Self {
        Number(number)
    }
}

/// [`Arc::make_mut`] with the copy in a cold function: in the usual case only a comparison runs.
#[inline(always)]
pub(crate) fn unshared<T: Clone>(shared: &mut Arc<T>) -> &mut T {
    #[cold]
    fn copy<T: Clone>(shared: &mut Arc<T>) -> &mut T {
        Arc::make_mut(shared)
    }
    if shared.is_unique() { Arc::get_mut(shared).expect("it is unique") } else { copy(shared) }
}

#[derive(Clone, Debug)]
pub(crate) struct Arena<T> {
    blocks: Vec<Arc<Block<T>>>,
    /// First block that may have room.
    room_from: usize,
    len: usize,
}

#[derive(Clone, Debug)]
struct Block<T> {
    pages: [Option<Arc<Page<T>>>; PAGES],
    /// One bit for each allocated page.
    there: u64,
    /// One bit for each page with a free slot, allocated or not.
    room: u64,
}

#[derive(Clone, Debug)]
struct Page<T> {
    /// One bit for each used slot.
    used: u16,
    things: [Option<T>; PAGE],
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { blocks: Vec::new(), room_from: 0, len: 0 }
    }
}

impl<T: Clone> Arena<T> {
    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the existing item with this number.
    #[inline(always)]
    pub(crate) fn at(&self, id: Number) -> &T {
        self.get(id).expect("Invariant: a number is not kept longer than its thing")
    }

    /// Looks up a number that may be free or reused by now.
    #[inline(always)]
    pub(crate) fn get(&self, id: Number) -> Option<&T> {
        let (block, page, at) = id.indices();
        self.blocks.get(block)?.pages[page].as_ref()?.things[at].as_ref()
    }

    /// Returns an existing item for a change; copies its page if a clone shares the page.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, id: Number) -> &mut T {
        let (block, page, at) = id.indices();
        let page = unshared(&mut self.blocks[block]).pages[page].as_mut().map(unshared);
        let thing = page.and_then(|page| page.things[at].as_mut());
        thing.expect("Invariant: a number is not kept longer than its thing")
    }

    /// Adds an item. Returns its number: the lowest free number in the first block with room.
    pub(crate) fn insert(&mut self, thing: T) -> Number {
        let is_full = |block: &Arc<Block<T>>| block.room == 0;
        while self.blocks.get(self.room_from).is_some_and(is_full) {
            self.room_from += 1;
        }
        if self.room_from == self.blocks.len() {
            let pages = [const { None }; PAGES];
            self.blocks.push(Arc::new(Block { pages, there: 0, room: u64::MAX }));
        }
        let block = unshared(&mut self.blocks[self.room_from]);
        let page_at = block.room.trailing_zeros() as usize;
        let empty = || Arc::new(Page { used: 0, things: [const { None }; PAGE] });
        let page = unshared(block.pages[page_at].get_or_insert_with(empty));
        let at = page.used.trailing_ones() as usize;
        debug_assert!(page.things[at].is_none(), "two things have one number");
        page.things[at] = Some(thing);
        page.used |= 1 << at;
        block.there |= 1 << page_at;
        if page.used == u16::MAX {
            block.room &= !(1 << page_at);
        }
        self.len += 1;
        Number::new(self.room_from, page_at, at)
    }

    /// Removes an existing item and frees its number.
    pub(crate) fn remove(&mut self, id: Number) {
        let (block_at, page_at, at) = id.indices();
        let block = unshared(&mut self.blocks[block_at]);
        let page = block.pages[page_at].as_mut().map(unshared);
        let page = page.expect("Invariant: a number is not kept longer than its thing");
        assert!(page.used >> at & 1 == 1, "Invariant: a number is not kept longer than its thing");
        page.things[at] = None;
        page.used &= !(1 << at);
        let is_empty = page.used == 0;
        block.room |= 1 << page_at;
        // Keeps one page with room for items that come and go one at a time.
        if is_empty && block.there & block.room & !(1 << page_at) != 0 {
            block.pages[page_at] = None;
            block.there &= !(1 << page_at);
        }
        self.room_from = self.room_from.min(block_at);
        self.len -= 1;
    }
}

impl<T> Arena<T> {
    /// Checks the invariants of the pages, for [`crate::Machine::check`].
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut found = 0;
        for (block_at, block) in self.blocks.iter().enumerate() {
            for (page_at, page) in block.pages.iter().enumerate() {
                let (is_there, has_room) = (block.there >> page_at & 1 == 1, block.room >> page_at & 1 == 1);
                let used = page.as_ref().map_or(0, |page| page.used);
                let things = page.iter().flat_map(|page| page.things.iter().enumerate());
                let bits =
                    things.filter(|(_, thing)| thing.is_some()).fold(0, |bits, (at, _)| bits | 1 << at);
                if page.is_some() != is_there || has_room != (used != u16::MAX) || bits != used {
                    return Err(format!("page {page_at} of block {block_at} is not what is noted of it"));
                }
                found += used.count_ones() as usize;
            }
            if block_at < self.room_from && block.room != 0 {
                return Err(format!("block {block_at} has room, and is said to have none"));
            }
        }
        if found == self.len { Ok(()) } else { Err(format!("{found} things are counted as {}", self.len)) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_its_things_alone_and_copies_stay_as_they_were(
            steps in prop::collection::vec((0usize..4, any::<prop::sample::Index>()), 0..400),
            cut in 0usize..400,
        ) {
            let mut arena = Arena::default();
            let mut model = BTreeMap::new();
            let mut copy = None;
            for (i, (kind, which)) in steps.into_iter().enumerate() {
                if i == cut {
                    copy = Some((arena.clone(), model.clone()));
                }
                if kind > 0 || model.is_empty() {
                    for value in [i, i + 1] {
                        prop_assert_eq!(model.insert(arena.insert(value), value), None);
                    }
                } else {
                    let ids: Vec<Number> = model.keys().copied().collect();
                    let id = *which.get(&ids);
                    prop_assert_eq!(arena.get(id).copied(), model.remove(&id));
                    arena.remove(id);
                    prop_assert_eq!(arena.get(id), None);
                }
                if let Some((id, value)) = model.iter_mut().next() {
                    *arena.at_mut(*id) += 1;
                    *value += 1;
                }
                prop_assert_eq!(arena.len(), model.len());
                prop_assert_eq!(arena.check(), Ok(()));
            }
            for (arena, model) in copy.into_iter().chain([(arena, model)]) {
                prop_assert!(model.iter().all(|(id, value)| arena.at(*id) == value));
            }
        }
    }

    #[test]
    fn pages_that_are_empty_go_but_for_one() {
        let mut arena = Arena::default();
        let ids: Vec<Number> = (0..10 * PAGE).map(|n| arena.insert(n)).collect();
        assert_eq!(arena.blocks[0].there.count_ones(), 10);
        for id in ids {
            arena.remove(id);
            arena.check().unwrap();
        }
        assert_eq!(arena.blocks[0].there.count_ones(), 1);
    }
}
