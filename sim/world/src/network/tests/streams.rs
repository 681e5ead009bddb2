//! What a stream guarantees without faults.

use super::*;

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn bytes_keep_their_order_in_both_directions() {
    for seed in 0..20 {
        let earth = Earth::new(seed);
        let (client, server) = earth.pair();
        let sent = numbered(20_000);
        for (from, to) in [(&client, &server), (&server, &client)] {
            for piece in sent.chunks(1 + seed as usize * 37) {
                earth.write(from, piece).expect("writes");
            }
            assert_eq!(earth.read_exactly(to, sent.len()).expect("reads"), sent);
        }
    }
}

#[test]
fn reads_are_short_and_writes_split_now_and_then() {
    let earth = Earth::new(1);
    let (client, server) = earth.pair();
    let (mut short, mut whole) = (0, 0);
    for _ in 0..400 {
        earth.write(&client, &[1; 100]).expect("writes");
        let first = earth.read(&server).expect("reads").len();
        earth.read_exactly(&server, 100 - first).expect("reads");
        *(if first < 100 { &mut short } else { &mut whole }) += 1;
    }
    assert!(short > 10 && whole > 200, "{short} short, {whole} whole");
}

#[test]
fn one_connection_overtakes_another() {
    let earth = Earth::new(2);
    let (client, server) = earth.pair();
    let (other_client, other_server) = earth.pair();
    let mut overtaken = 0;
    for _ in 0..50 {
        earth.write(&client, b"1").expect("writes");
        earth.write(&other_client, b"2").expect("writes");
        earth.read_exactly(&other_server, 1).expect("reads");
        overtaken += usize::from(server.try_read(&mut [0; 8]).is_err());
        earth.run_for(Duration::from_millis(100));
        let _ = server.try_read(&mut [0; 8]);
    }
    assert!((5..45).contains(&overtaken), "{overtaken}");
}

#[test]
fn a_writer_waits_until_the_other_side_has_read() {
    let earth = Earth::new(3);
    earth.net.set_window(10_000);
    let (client, server) = earth.pair();
    let mut written = 0;
    while let Ok(bytes) = client.try_write(&[5; 3_000]) {
        written += bytes;
    }
    assert_eq!(written, 10_000);
    let (bell, waker) = bell();
    assert!(client.poll_write(&mut Context::from_waker(&waker), b"more").is_pending());
    earth.run_for(Duration::from_secs(10));
    assert_eq!(bell.count(), 0, "what arrived and was not read makes no room");
    let read = server.try_read(&mut [0; 100]).expect("it has arrived");
    assert_eq!(bell.count(), 1);
    assert_eq!(client.try_write(&[5; 3_000]).expect("writes"), read);
}

#[test]
fn only_the_last_waker_is_called() {
    let earth = Earth::new(4);
    let (client, server) = earth.pair();
    let (first, first_waker) = bell();
    let (last, last_waker) = bell();
    for waker in [&first_waker, &last_waker] {
        assert!(server.poll_read(&mut Context::from_waker(waker), &mut [0; 8]).is_pending());
    }
    earth.write(&client, b"x").expect("writes");
    earth.run_for(Duration::from_secs(1));
    assert_eq!((first.count(), last.count()), (0, 1));
}

#[test]
fn a_half_that_is_closed_ends_one_direction_only() {
    let earth = Earth::new(5);
    let (client, server) = earth.pair();
    earth.write(&client, b"last words").expect("writes");
    client.close_write();
    assert_eq!(kind(client.try_write(b"x")), Some(io::ErrorKind::BrokenPipe));
    assert_eq!(earth.read_exactly(&server, 10).expect("reads"), b"last words");
    assert!(earth.read(&server).expect("the end of the stream").is_empty());
    earth.write(&server, b"answer").expect("writes");
    assert_eq!(earth.read_exactly(&client, 6).expect("reads"), b"answer");
}

#[test]
fn what_arrives_after_reading_was_closed_is_thrown_away() {
    let earth = Earth::new(6);
    earth.net.set_window(1_000);
    let (client, server) = earth.pair();
    server.close_read();
    earth.write(&client, &[0; 5_000]).expect("there is room again and again");
    earth.write(&server, b"still here").expect("writes");
    assert_eq!(earth.read_exactly(&client, 10).expect("reads"), b"still here");
}

#[test]
fn who_writes_to_a_dropped_end_gets_a_reset_later() {
    let earth = Earth::new(7);
    let (client, server) = earth.pair();
    drop(server);
    earth.run_for(Duration::from_secs(1));
    earth.write(&client, b"is anybody there?").expect("the kernel takes it");
    earth.run_for(Duration::from_secs(1));
    assert_eq!(kind(client.try_write(b"hello?")), Some(io::ErrorKind::ConnectionReset));
    assert_eq!(kind(client.try_read(&mut [0; 8])), Some(io::ErrorKind::ConnectionReset));
}

#[test]
fn an_end_dropped_with_unread_data_resets_the_other() {
    let earth = Earth::new(8);
    let (client, server) = earth.pair();
    earth.write(&client, b"read me").expect("writes");
    earth.run_for(Duration::from_secs(1));
    drop(server);
    earth.run_for(Duration::from_secs(1));
    assert_eq!(kind(client.try_read(&mut [0; 8])), Some(io::ErrorKind::ConnectionReset));
}

#[test]
fn nothing_is_left_of_connections_whose_ends_are_dropped() {
    let earth = Earth::new(9);
    let (client, server) = earth.pair();
    earth.write(&client, &[0; 100]).expect("writes");
    earth.write(&server, &[0; 100]).expect("writes");
    assert_eq!(earth.net.open_connections(), 1);
    drop((client, server));
    earth.run_for(Duration::from_secs(1));
    assert_eq!(earth.net.open_connections(), 0);
}

#[test]
fn handles_outlive_their_world() {
    let earth = Earth::new(10);
    let (client, _server) = earth.pair();
    let net = earth.net.clone();
    let (bell, waker) = bell();
    assert!(client.poll_read(&mut Context::from_waker(&waker), &mut [0; 8]).is_pending());
    drop(earth);
    assert_eq!(kind(client.try_read(&mut [0; 8])), Some(io::ErrorKind::NotConnected));
    net.process_died(A);
    assert_eq!(bell.count(), 0);
}
