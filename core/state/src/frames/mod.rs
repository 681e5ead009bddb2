//! The largest legal request of every kind and its effect on the state: counted steps and bytes, no clock.
//!
//! A price refuses a request that fills a frame, or the test applies the request. After a refusal the test
//! tries the largest request within the price. The effect never costs more than the price.

mod ends;
mod entries;
mod weigh;
mod world;

use std::sync::Arc;

use rowlock_frames::{At, Kind, LOGGED, bytes, largest};
use rowlock_proto::acl::Id;
use rowlock_proto::response::{OpResult, Response};
use rowlock_proto::{ErrorCode, Request};

use crate::PLACES_MAX;
use crate::cost::{COMMAND_BYTES_MAX, COMMAND_STEPS_MAX, Cost};
use crate::steps;
use world::{ROOT, World, command};

/// Limit of state bytes per byte of a frame, beside the effect of the smallest request of the kind.
const BYTES_PER_BYTE: usize = 16;
/// Limit of bytes beside the frame's own: 32 missing ancestors, an expanded list.
const BYTES_BESIDE: usize = 48 << 10;

struct Largest {
    /// Bytes of the full request, and its price.
    full: (usize, Result<Cost, ErrorCode>),
    /// Outcome of the largest admitted request.
    admitted: Applied,
}

struct Applied {
    items: usize,
    bytes: usize,
    cost: Cost,
    steps: u64,
    grown: usize,
    succeeds: bool,
}

fn measured(kind: &Kind) -> Largest {
    let mut world = World::new();
    let at = At { root: ROOT, token: world.prepare(kind) };
    let identities: Arc<[Id]> = kind.identities.ids().collect();
    let of = |items| (kind.request)(&at, items);
    let full = kind.full(&at);
    let price = |request: &Request| world.price(&identities, command(request.clone()));
    let request = of(full);
    let (price_of_full, looked) = steps::taken_by(|| price(&request));
    assert!(looked <= COMMAND_STEPS_MAX, "{}: finding out the price takes {looked} steps", kind.name);
    let items = match price_of_full {
        Ok(_) => full,
        Err(_) => largest(full, |items| price(&of(items)).is_ok()),
    };
    let request = of(items);
    let cost = price(&request).unwrap();
    let before = weigh::bytes(&world.machine);
    let (applied, steps) = steps::taken_by(|| world.apply(&identities, command(request.clone())));
    world.machine.check().unwrap();
    let failed = |results: &[OpResult]| matches!(results.first(), Some(OpResult::Error(_)));
    let succeeds = match &applied {
        Ok(Response::Multi(results)) => !failed(results),
        other => other.is_ok(),
    };
    let grown = weigh::bytes(&world.machine).saturating_sub(before);
    Largest {
        full: (bytes(&of(full)), price_of_full),
        admitted: Applied { items, bytes: bytes(&request), cost, steps, grown, succeeds },
    }
}

#[test]
fn no_request_costs_more_than_its_price_or_the_limit() {
    let mut found = Vec::new();
    assert_eq!(rowlock_frames::PLACES_MAX, PLACES_MAX);
    for kind in LOGGED.iter().copied().flatten() {
        let Largest { full, admitted } = measured(kind);
        let Applied { items, bytes, cost, steps, grown, succeeds } = admitted;
        let told = match full.1 {
            Ok(_) => "let in".to_owned(),
            Err(code) => format!("refused: {code}"),
        };
        println!(
            "{:46} frame {:>7} {told:24} | largest let in: {items:>6} items {bytes:>7} B, steps {steps:>8} of {:>8}, grown {grown:>9} of {:>9}, {:>4.1} per byte",
            kind.name,
            full.0,
            cost.steps,
            cost.bytes,
            grown as f64 / bytes as f64,
        );
        let wrong = [
            (steps > cost.steps, "it takes more steps than its price"),
            (cost.steps > COMMAND_STEPS_MAX, "it takes more steps than a command may"),
            (grown as u64 > cost.bytes, "it makes more bytes than its price"),
            (cost.bytes > COMMAND_BYTES_MAX, "it makes more bytes than a command may"),
            (grown > BYTES_PER_BYTE * bytes + BYTES_BESIDE, "it makes too many bytes for its own"),
            (full.1.err() != kind.refused, "the one that fills a frame gets another verdict"),
            (succeeds != kind.succeeds, "it is carried out, or not"),
            (full.1.is_err() && items != kind.admitted, "another number is the largest that is let in"),
        ];
        let wrong = wrong.iter().filter(|(is_wrong, _)| *is_wrong);
        found.extend(wrong.map(|(_, what)| format!("{}: {what}", kind.name)));
    }
    assert!(found.is_empty(), "{found:#?}");
}
