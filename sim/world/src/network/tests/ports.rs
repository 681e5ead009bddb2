//! Addresses, listening, and how connections begin or fail to.

use std::io::ErrorKind;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_connection_takes_a_round_trip_and_knows_both_addresses() {
    let earth = Earth::new(1);
    let port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    let client = earth.connect(A, "b:2181").expect("connects");
    assert!(earth.now() >= Nanos(200_000), "{}", earth.now());
    let server = earth.accept(&port);
    assert_eq!(client.peer_addr().to_string(), "10.0.0.2:2181");
    assert_eq!(server.peer_addr().ip().to_string(), "10.0.0.1");
    earth.connect(A, "10.0.0.2:2181").expect("connects to an address");
    assert_ne!(earth.accept(&port).peer_addr(), server.peer_addr(), "each connection has a port of its own");
}

#[test]
fn a_host_reaches_itself_quickly_even_when_cut_off() {
    let earth = Earth::new(2);
    for host in [B, C] {
        earth.net.cut(A, host);
        earth.net.cut(host, A);
    }
    earth.net.cut(A, A);
    let port = earth.net.listen(A, "127.0.0.1:9000").expect("listens");
    let client = earth.connect(A, "localhost:9000").expect("connects");
    assert!(earth.now() < Nanos::from_millis(1));
    let server = earth.accept(&port);
    assert!(server.peer_addr().ip().is_loopback() && client.peer_addr().ip().is_loopback());
    assert_eq!(kind(earth.connect(B, "a:9000")), Some(ErrorKind::TimedOut));
    earth.net.join_all();
    assert_eq!(
        kind(earth.connect(B, "a:9000")),
        Some(ErrorKind::ConnectionRefused),
        "it listens for itself only"
    );
}

#[test]
fn a_port_is_refused_where_nobody_listens() {
    let earth = Earth::new(3);
    assert_eq!(kind(earth.connect(A, "b:2181")), Some(ErrorKind::ConnectionRefused));
    assert!(earth.now() >= Nanos(200_000) && earth.now() < Nanos::from_millis(200), "{}", earth.now());
    assert_eq!(kind(earth.connect(A, "nobody:2181")), Some(ErrorKind::NotFound));
    assert_eq!(kind(earth.connect(A, "b")), Some(ErrorKind::NotFound));
    assert_eq!(kind(earth.connect(A, "10.9.9.9:2181")), Some(ErrorKind::TimedOut));
    assert_eq!(earth.net.counters().refused, 1);
    assert_eq!(earth.net.open_connections(), 0);
}

#[test]
fn connecting_times_out_at_a_dead_machine_or_a_cut() {
    let earth = Earth::new(4);
    let _port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    let timed_out = |what: &str| {
        let before = earth.now();
        let refused = earth.connected(earth.net.connect(A, "b:2181", 3 * SECOND));
        assert_eq!(kind(refused), Some(ErrorKind::TimedOut), "{what}");
        assert_eq!(earth.now() - before, 3 * SECOND, "{what}");
    };
    earth.net.cut(A, B);
    timed_out("the request is lost");
    earth.net.join(A, B);
    earth.net.cut(B, A);
    timed_out("the answer is lost");
    earth.net.join_all();
    earth.net.power_lost(B);
    timed_out("there is no power");
    earth.net.boot(B);
    assert_eq!(kind(earth.connect(A, "b:2181")), Some(ErrorKind::ConnectionRefused));
}

#[test]
fn a_request_to_connect_is_repeated_until_the_link_is_whole() {
    let earth = Earth::new(5);
    let _port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    earth.net.cut(A, B);
    let mut connecting = earth.net.connect(A, "b:2181", 10 * SECOND);
    assert!(earth.wait_for(2 * SECOND, |cx| connecting.as_mut().poll(cx)).is_none());
    earth.net.join(A, B);
    earth.connected(connecting).expect("connects");
    assert!(earth.now() < Nanos::from_millis(8_000), "{}", earth.now());
}

#[test]
fn an_address_is_free_after_its_listener_or_process() {
    let earth = Earth::new(6);
    let port = earth.net.listen(B, "10.0.0.2:2181").expect("listens");
    for taken in ["0.0.0.0:2181", "b:2181", "[::]:2181"] {
        assert_eq!(kind(earth.net.listen(B, taken)), Some(ErrorKind::AddrInUse), "{taken}");
    }
    earth.net.listen(B, "127.0.0.1:2181").expect("another address");
    earth.net.listen(A, "0.0.0.0:2181").expect("another host");
    assert_eq!(kind(earth.net.listen(B, "10.0.0.1:80")), Some(ErrorKind::AddrNotAvailable));
    drop(port);
    let old = earth.net.listen(B, "0.0.0.0:2181").expect("the old one is gone");
    earth.net.process_died(B);
    let _new = earth.net.listen(B, "0.0.0.0:2181").expect("its process is dead");
    drop(old);
    earth.connect(A, "b:2181").expect("the old handle does not close the new process's port");
    assert_ne!(earth.net.listen(B, "0.0.0.0:0").expect("listens").local_addr().port(), 0);
}

#[test]
fn a_paused_process_gets_connections_up_to_its_backlog() {
    let earth = Earth::new(7);
    let port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    let mut clients = Vec::new();
    let refused = loop {
        match earth.connect(A, "b:2181") {
            Ok(client) => clients.push(client),
            Err(error) => break error.kind(),
        }
        earth.run_for(Duration::from_millis(100));
    };
    assert_eq!((refused, clients.len()), (ErrorKind::TimedOut, 128));
    earth.write(&clients[3], b"early").expect("its kernel takes it");
    for _ in 0..3 {
        earth.accept(&port);
    }
    assert_eq!(earth.read_exactly(&earth.accept(&port), 5).expect("reads"), b"early");
    earth.connect(A, "b:2181").expect("there is room again");
}

#[test]
fn who_was_not_accepted_when_the_listener_goes_gets_a_reset() {
    let earth = Earth::new(8);
    let port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
    let client = earth.connect(A, "b:2181").expect("connects");
    drop(port); // the handshake's last word may be under way
    earth.run_for(SECOND);
    assert_eq!(kind(client.try_read(&mut [0; 8])), Some(ErrorKind::ConnectionReset));
    drop(client);
    assert_eq!(earth.net.open_connections(), 0);
}

#[test]
fn a_dropped_attempt_leaves_nothing_behind() {
    for micros in [0, 100, 300, 800, 2_000, 20_000] {
        let earth = Earth::new(micros);
        let port = earth.net.listen(B, "0.0.0.0:2181").expect("listens");
        let connecting = earth.net.connect(A, "b:2181", SECOND);
        earth.run_for(Duration::from_micros(micros));
        drop(connecting);
        earth.run_for(5 * SECOND);
        if let Some(server) = earth.wait_for(SECOND, |cx| port.poll_accept(cx)) {
            let server = server.expect("accepts");
            assert!(earth.read(&server).expect("the end of the stream").is_empty());
        }
        earth.run_for(SECOND);
        assert_eq!(earth.net.open_connections(), 0, "dropped after {micros} µs");
    }
}
