//! The map beside a `BTreeMap`, and how its chunks fill and empty.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn behaves_as_a_btree_map_and_clones_stay_as_they_were(
        steps in prop::collection::vec((0u16..400, any::<bool>()), 0..1500),
        cut in 0usize..1500,
    ) {
        let mut map = SharedMap::default();
        let mut model = BTreeMap::new();
        let mut clone = None;
        for (i, (key, insert)) in steps.into_iter().enumerate() {
            if i == cut {
                clone = Some((map.clone(), model.clone()));
            }
            if insert {
                prop_assert_eq!(map.insert(key, i), model.insert(key, i));
            } else if key == 0 {
                prop_assert_eq!(map.pop_first(), model.pop_first());
            } else {
                prop_assert_eq!(map.remove(&key), model.remove(&key));
            }
            if let Some(value) = map.get_mut(&(key ^ 1)) {
                *value += 1;
            }
            if let Some(value) = model.get_mut(&(key ^ 1)) {
                *value += 1;
            }
            prop_assert_eq!(map.get(&(key ^ 1)), model.get(&(key ^ 1)));
            prop_assert_eq!(map.first(), model.first_key_value());
            prop_assert_eq!(map.last(), model.last_key_value());
            let (Ok(place) | Err(place)) = map.find(&key);
            prop_assert_eq!(map.rank_of(place), model.range(..key).count());
            prop_assert!(map.starting_at(map.nth(map.rank_of(place))).eq(model.range(key..)));
            for guess in [place, Slot::new(i % 5, i % 70), Slot::new(0, 0)] {
                prop_assert_eq!(map.find_near(&key, guess), map.find(&key));
            }
            prop_assert!(map.from(&key).eq(model.range(key..)));
            prop_assert_eq!(map.check(), Ok(()));
        }
        prop_assert!(map.iter().eq(model.iter()));
        if let Some((map, model)) = clone {
            prop_assert!(map.iter().eq(model.iter()));
        }
    }
}

#[test]
fn appends_fill_chunks_and_drains_leave_none() {
    let mut map = SharedMap::default();
    for i in 0..1000 {
        map.insert(i, ());
    }
    assert_eq!(map.chunks().len(), 1000_usize.div_ceil(CHUNK_MAX));
    assert_eq!(map.last_key(), Some(&999));
    for i in 0..1000 {
        assert_eq!(map.remove(&i), Some(()));
        map.check().unwrap();
    }
    assert!(matches!(map, SharedMap::Empty));
}

#[test]
fn keys_that_rise_in_several_places_of_the_map_fill_its_chunks() {
    let mut map = SharedMap::default();
    for i in 0..1000 {
        for node in 0..3 {
            map.insert((node, i), ());
        }
        map.check().unwrap();
    }
    let full = 3000_usize.div_ceil(CHUNK_MAX);
    assert!(map.chunks().len() <= full + 6, "{} chunks instead of {full}", map.chunks().len());
}

#[test]
fn an_insert_that_shifts_entries_returns_the_right_slot() {
    for new in (1..CHUNK_MAX * 6).step_by(2) {
        let mut map = SharedMap::default();
        for i in (0..).step_by(2).take(CHUNK_MAX * 3) {
            map.insert(i, i);
        }
        for i in (0..).step_by(4).skip(CHUNK_MAX / 4).take(CHUNK_MAX / 4) {
            map.remove(&i);
        }
        assert_eq!(map.insert(new, new), None);
        map.check().unwrap();
        assert_eq!(map.get(&new), Some(&new));
    }
}

#[test]
fn a_single_entry_reuses_its_chunk_unseen_by_clones() {
    let mut map = SharedMap::default();
    map.insert(1, "a");
    let clone = map.clone();
    assert_eq!(map.remove(&1), Some("a"));
    assert!(matches!(map, SharedMap::Empty), "a chunk that others share stays theirs");
    assert_eq!(clone.get(&1), Some(&"a"));
    for key in [3, 2, 7] {
        map.insert(key, "b");
        map.check().unwrap();
        assert_eq!((map.len(), map.find(&4)), (1, Err(Slot::new(0, usize::from(key < 4)))));
        assert_eq!(map.pop_first(), Some((key, "b")));
        map.check().unwrap();
        assert!(matches!(map, SharedMap::One(_)) && map.is_empty());
        assert_eq!((map.first(), map.get(&key), map.find(&key)), (None, None, Err(Slot::new(0, 0))));
        assert!(matches!(map.clone(), SharedMap::Empty));
    }
}

#[test]
fn a_chunk_after_a_shift_merges_with_a_small_next_one() {
    for new in (1..CHUNK_MAX * 6).step_by(2) {
        let mut map = SharedMap::default();
        for i in (0..).step_by(2).take(CHUNK_MAX * 3) {
            map.insert(i, i);
        }
        for i in (0..).step_by(2).take(44).chain((CHUNK_MAX * 4..).step_by(2).take(54)) {
            map.remove(&i);
        }
        map.check().unwrap();
        assert_eq!(map.insert(new, new), None);
        map.check().unwrap();
        assert_eq!(map.get(&new), Some(&new));
    }
}
