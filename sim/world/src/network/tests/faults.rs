//! What cuts, loss, resets and the death of machines do to streams.

use std::io::ErrorKind;

use super::*;
use crate::network::Delay;

const SECOND: Duration = Duration::from_secs(1);

fn reset<T>(result: io::Result<T>) -> bool {
    kind(result) == Some(ErrorKind::ConnectionReset)
}

#[test]
fn a_one_way_cut_holds_up_one_direction_and_heals() {
    for seed in 0..20 {
        let earth = Earth::new(seed);
        let (client, server) = earth.pair();
        earth.net.cut(A, B);
        earth.write(&client, b"held up").expect("the kernel takes it");
        earth.write(&server, b"passes").expect("writes");
        assert_eq!(earth.read_exactly(&client, 6).expect("reads"), b"passes");
        earth.run_for(10 * SECOND);
        assert_eq!(kind(server.try_read(&mut [0; 8])), Some(ErrorKind::WouldBlock));
        earth.net.join(A, B);
        let joined = earth.now();
        assert_eq!(earth.read_exactly(&server, 7).expect("reads"), b"held up");
        assert!(earth.now() - joined <= 2 * SECOND + SECOND / 10);
        earth.run_for(100 * SECOND);
        assert_eq!(kind(client.try_read(&mut [0; 8])), Some(ErrorKind::WouldBlock), "nothing broke later");
    }
}

#[test]
fn a_distrusted_host_is_cut_off_until_trusted() {
    for (from, to) in [(A, B), (B, A)] {
        let earth = Earth::new(4);
        let port = earth.net.listen(B, "0.0.0.0:0").expect("listens");
        let there = format!("b:{}", port.local_addr().port());
        let before = earth.connect(A, &there).expect("connects");
        let accepted = earth.accept(&port);
        earth.net.distrust(from, to);
        let refused = earth.connect(A, &there).expect("the kernels connect");
        assert!(reset(earth.read(&refused)), "and the handshake fails");
        assert!(
            earth.wait_for(SECOND, |cx| port.poll_accept(cx)).is_none(),
            "the server has not heard of it"
        );
        earth.write(&before, b"x").expect("writes");
        assert_eq!(earth.read_exactly(&accepted, 1).expect("what was open stays open"), b"x");
        assert_eq!(earth.net.counters().distrusted, 1);
        earth.net.trust(from, to);
        earth.connect(A, &there).expect("connects");
        earth.accept(&port);
    }
}

#[test]
fn segments_held_by_a_cut_arrive_after_the_join() {
    let earth = Earth::new(1);
    let (client, server) = earth.pair();
    earth.write(&client, b"on the way").expect("writes");
    earth.net.cut(A, B);
    earth.run_for(SECOND);
    assert_eq!(kind(server.try_read(&mut [0; 8])), Some(ErrorKind::WouldBlock));
    earth.net.join_all();
    assert_eq!(earth.read_exactly(&server, 10).expect("reads"), b"on the way");
}

#[test]
fn a_sender_gives_up_after_a_minute() {
    for (from, to, what) in [(A, B, "data"), (B, A, "acknowledgements")] {
        let earth = Earth::new(2);
        let (client, server) = earth.pair();
        earth.net.cut(from, to);
        earth.write(&client, b"x").expect("the kernel takes it");
        assert!(earth.wait_for(59 * SECOND, |cx| client.poll_read(cx, &mut [0; 8])).is_none(), "{what}");
        assert_eq!(kind(earth.read(&client)), Some(ErrorKind::TimedOut), "{what}");
        assert_eq!(kind(client.try_write(b"x")), Some(ErrorKind::TimedOut), "{what}");
        earth.net.join_all();
        earth.run_for(5 * SECOND);
        let mut buf = [0; 8];
        let arrived = if from == B { Ok(1) } else { Err(ErrorKind::WouldBlock) };
        assert_eq!(server.try_read(&mut buf).map_err(|error| error.kind()), arrived, "{what}");
        earth.write(&server, b"are you there?").expect("the kernel takes it");
        earth.run_for(SECOND);
        assert!(reset(server.try_write(b"hello?")), "{what}");
    }
}

#[test]
fn a_reader_behind_a_cut_makes_no_room_for_its_writer() {
    let earth = Earth::new(3);
    earth.net.set_window(100);
    let (client, server) = earth.pair();
    earth.write(&client, &[0; 100]).expect("writes");
    earth.net.cut(B, A);
    earth.read_exactly(&server, 100).expect("reads");
    assert_eq!(kind(client.try_write(b"x")), Some(ErrorKind::WouldBlock));
    earth.run_for(SECOND);
    let (bell, waker) = bell();
    assert!(client.poll_write(&mut Context::from_waker(&waker), b"x").is_pending());
    earth.net.join(B, A);
    assert_eq!((bell.count(), client.try_write(b"x").expect("writes")), (1, 1));
}

#[test]
fn a_dead_process_ends_its_streams_after_what_it_wrote() {
    let (mut ends, mut resets) = (0, 0);
    for seed in 0..40 {
        let earth = Earth::new(seed);
        let (client, server) = earth.pair();
        earth.write(&server, b"my last words").expect("writes");
        let (bell, waker) = bell();
        assert!(server.poll_read(&mut Context::from_waker(&waker), &mut [0; 8]).is_pending());
        earth.net.process_died(B);
        match earth.read_exactly(&client, 14) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => ends += 1,
            other => resets += usize::from(reset(other)),
        }
        assert_eq!(bell.count(), 0, "nobody is there to be woken");
        assert_eq!(kind(server.try_write(b"x")), Some(ErrorKind::NotConnected));
        assert_eq!(kind(server.try_read(&mut [0; 8])), Some(ErrorKind::NotConnected));
        drop((client, server));
        earth.run_for(SECOND);
        assert_eq!(earth.net.open_connections(), 0);
    }
    assert_eq!(ends + resets, 40);
    assert!(ends > 20 && resets > 2, "{ends} ends of the stream, {resets} resets");
}

#[test]
fn a_process_that_dies_with_unread_data_resets_its_peer() {
    let earth = Earth::new(4);
    let (client, _server) = earth.pair();
    earth.write(&client, b"unread").expect("writes");
    earth.run_for(SECOND);
    earth.net.process_died(B);
    assert!(reset(earth.read(&client)));
}

#[test]
fn a_rebooted_machine_resets_forgotten_connections() {
    for seed in 0..20 {
        let earth = Earth::new(seed);
        let (client, server) = earth.pair();
        earth.net.power_lost(B);
        drop(server);
        earth.write(&client, b"anybody there?").expect("the kernel takes it");
        assert!(earth.wait_for(30 * SECOND, |cx| client.poll_read(cx, &mut [0; 8])).is_none(), "silence");
        earth.net.boot(B);
        let booted = earth.now();
        assert!(reset(earth.read(&client)));
        assert!(earth.now() - booted <= 3 * SECOND);
    }
}

#[test]
fn an_idle_connection_to_a_dead_machine_stays_half_open() {
    let earth = Earth::new(5);
    let (client, _server) = earth.pair();
    earth.net.power_lost(B);
    earth.net.boot(B);
    assert!(earth.wait_for(1_000 * SECOND, |cx| client.poll_read(cx, &mut [0; 8])).is_none());
    earth.write(&client, b"x").expect("the kernel takes it");
    assert!(reset(earth.read(&client)));
}

#[test]
fn a_writer_without_room_hears_of_a_machine_that_lost_its_power() {
    for boots in [true, false] {
        let earth = Earth::new(6);
        earth.net.set_window(10);
        let (client, _server) = earth.pair();
        earth.write(&client, &[0; 10]).expect("writes");
        earth.run_for(SECOND);
        assert!(earth.wait_for(SECOND, |cx| client.poll_write(cx, b"x")).is_none());
        earth.net.power_lost(B);
        if boots {
            earth.run_for(SECOND);
            earth.net.boot(B);
        }
        let expected = if boots { ErrorKind::ConnectionReset } else { ErrorKind::TimedOut };
        assert_eq!(kind(earth.wait(|cx| client.poll_write(cx, b"x"))), Some(expected));
    }
}

#[test]
fn a_reset_reaches_one_side_or_both() {
    let (mut both, mut one) = (0, 0);
    for seed in 0..40 {
        let earth = Earth::new(seed);
        let (client, server) = earth.pair();
        let (other, _) = {
            let port = earth.net.listen(C, "0.0.0.0:1").expect("listens");
            (earth.connect(A, "c:1").expect("connects"), earth.accept(&port))
        };
        assert_eq!(earth.net.reset_between(A, B) + earth.net.reset_between(B, A), 1);
        let heard = [&client, &server].map(|end| reset(end.try_read(&mut [0; 8])));
        match heard {
            [true, true] => both += 1,
            [false, false] => panic!("nobody heard of the reset"),
            [true, false] | [false, true] => {
                one += 1;
                let deaf = if heard[0] { &server } else { &client };
                earth.write(deaf, b"x").expect("the kernel takes it");
                assert!(reset(earth.read(deaf)));
            }
        }
        other.try_write(b"still fine").expect("another connection");
    }
    assert!(both > 5 && one > 5, "{both} {one}");
}

#[test]
fn all_connections_of_a_host_can_be_reset() {
    let earth = Earth::new(7);
    let (_one, _two) = (earth.pair(), earth.pair());
    assert_eq!(earth.net.reset_all(C), 0);
    assert_eq!(earth.net.reset_all(A), 2);
    assert_eq!(earth.net.reset_all(B), 0, "no more than once");
}

#[test]
fn a_clogged_link_is_slow_in_one_direction() {
    let earth = Earth::new(8);
    let (client, server) = earth.pair();
    earth.net.set_delay(A, B, Delay::between(2 * SECOND, 3 * SECOND));
    let trip = |from: &Arc<dyn Conduit>, to: &Arc<dyn Conduit>| {
        let before = earth.now();
        earth.write(from, b"x").expect("writes");
        earth.read_exactly(to, 1).expect("reads");
        earth.now() - before
    };
    assert!(trip(&client, &server) >= 2 * SECOND);
    assert!(trip(&server, &client) < SECOND);
    earth.net.set_delay(A, B, Delay::NONE);
    assert!(trip(&client, &server) < SECOND);
}

#[test]
fn a_lost_segment_is_late_and_so_is_what_is_behind_it() {
    let earth = Earth::new(9);
    let (client, server) = earth.pair();
    earth.net.lose_segments(A, B, 1_000);
    earth.write(&client, b"lost once").expect("writes");
    earth.net.lose_segments(A, B, 0);
    earth.write(&client, b", behind it").expect("writes");
    let before = earth.now();
    assert_eq!(earth.read_exactly(&server, 20).expect("reads"), b"lost once, behind it");
    let late = earth.now() - before;
    assert!(late >= SECOND / 5 && late <= 3 * SECOND, "{late:?}");
    assert!(earth.net.counters().lost_on_the_way >= 1);
}
