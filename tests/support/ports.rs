//! Free loopback ports, below the range from which the kernel takes the ports of outgoing connections.
//! Otherwise a client that tries to reach a dead node could get that node's port as its own.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;
/// How far apart two test processes start, so that they seldom try the same port.
const STRIDE: u32 = 997;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port without a listener, never returned twice by this process.
pub fn free() -> u16 {
    let start = (std::process::id().wrapping_mul(STRIDE) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (u32::from(start) + u32::from(step)).rem_euclid(u32::from(COUNT)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} on");
}

pub fn address() -> String {
    format!("127.0.0.1:{}", free())
}
