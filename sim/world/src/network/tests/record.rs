//! The record: every message with its sender; and one seed means one run.

use super::*;
use crate::trace::What;

fn name(port: u16, to_server: bool, bytes: &[u8]) -> Option<String> {
    (bytes[0] != b'?').then(|| format!("{} {} {}", bytes.len(), if to_server { "to" } else { "from" }, port))
}

#[test]
fn messages_are_named_and_arrive_or_are_lost() {
    let earth = Earth::with_trace(1, Trace::new(true));
    earth.net.set_labeler(name);
    let port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    let client = earth.connect(A, "b:2181").expect("connects");
    let server = earth.accept(&port);
    earth.write(&client, b"abc").expect("writes");
    earth.read_exactly(&server, 3).expect("reads");
    earth.net.cut(B, A);
    earth.write(&server, b"?").expect("the kernel takes it");
    earth.net.power_lost(B);
    let (happenings, _) = earth.heart.trace.take();
    let (mut sent, mut arrived, mut lost, mut cuts) = (Vec::new(), 0, 0, 0);
    for happening in happenings {
        match happening.what {
            What::Sent { from, to, bytes, label, .. } => sent.push((from, to, bytes, label)),
            What::Arrived { .. } => arrived += 1,
            What::Lost { .. } => lost += 1,
            What::Cut { from, to } => cuts += usize::from((from, to) == (B, A)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent.iter().map(|(_, _, bytes, _)| bytes).sum::<usize>(), 4);
    assert_eq!(sent[0], (A, B, sent[0].2, "3 to 2181".to_owned()));
    assert_eq!(sent.last().map(|last| (last.0, last.3.as_str())), Some((B, "")));
    assert_eq!((arrived, lost, cuts), (sent.len() - 1, 1, 1));
}

/// Some traffic under loss; the fingerprint at the end.
fn run(seed: u64, keep: bool) -> (u64, Nanos) {
    let earth = Earth::with_trace(seed, Trace::new(keep));
    earth.net.set_labeler(name);
    earth.net.lose_segments(A, B, 100);
    let (client, server) = earth.pair();
    for n in 0..200_u8 {
        earth.write(&client, &vec![n; usize::from(n) + 1]).expect("writes");
        earth.read_exactly(&server, usize::from(n) + 1).expect("reads");
    }
    earth.net.reset_all(B);
    earth.run_for(Duration::from_secs(1));
    (earth.heart.trace.fingerprint(), earth.now())
}

#[test]
fn a_seed_is_one_run_whether_or_not_the_record_is_kept() {
    for seed in 0..10 {
        assert_eq!(run(seed, false), run(seed, true));
        assert_ne!(run(seed, false), run(seed + 1, false));
    }
}
