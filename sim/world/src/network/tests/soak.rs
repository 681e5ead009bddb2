//! All faults at random: reads return what was written, and no reader or writer hangs.

use std::task::Waker;

use super::*;
use crate::network::Delay;

const SECOND: Duration = Duration::from_secs(1);

/// One end of a connection, as its process sees it.
#[derive(Default)]
struct User {
    conduit: Option<Arc<dyn Conduit>>,
    written: usize,
    read: usize,
    saw_error: bool,
    saw_end: bool,
    closed_read: bool,
    closed_write: bool,
}

/// A connection: its client, its server, and who they are. The port is there until the server has accepted.
struct Link {
    hosts: [HostId; 2],
    users: [User; 2],
    connecting: Option<Connecting>,
    port: Option<Arc<dyn Port>>,
}

/// What stands at a place of a stream.
fn byte(link: usize, side: usize, place: usize) -> u8 {
    (link * 31 + side * 17 + place * 7 + place / 253) as u8
}

struct Soak {
    earth: Earth,
    rng: Rng,
    links: Vec<Link>,
    powered: [bool; 3],
}

impl Soak {
    fn begin(&mut self) {
        let hosts = [self.rng.pick(&[A, B, C]), self.rng.pick(&[A, B, C])];
        if !hosts.iter().all(|host| self.powered[host.0]) {
            return;
        }
        let port = self.earth.net.listen(hosts[1], "0.0.0.0:0").expect("listens");
        let addr = format!("10.0.0.{}:{}", hosts[1].0 + 1, port.local_addr().port());
        let connecting = Some(self.earth.net.connect(hosts[0], &addr, 5 * SECOND));
        self.links.push(Link { hosts, users: Default::default(), connecting, port: Some(port) });
    }

    /// Connections that have come about.
    fn progress(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        for link in &mut self.links {
            if let Some(Poll::Ready(outcome)) = link.connecting.as_mut().map(|it| it.as_mut().poll(cx)) {
                link.connecting = None;
                link.users[0].saw_error = outcome.is_err();
                link.users[0].conduit = outcome.ok();
            }
            if let Some(Poll::Ready(outcome)) = link.port.as_ref().map(|port| port.poll_accept(cx)) {
                link.port = None;
                link.users[1].conduit = outcome.ok();
            }
        }
    }

    fn write(&mut self, link: usize, side: usize, bytes: usize) {
        let user = &mut self.links[link].users[side];
        let Some(conduit) = user.conduit.as_ref().filter(|_| !user.closed_write) else { return };
        let bytes: Vec<u8> =
            (user.written..user.written + bytes).map(|place| byte(link, side, place)).collect();
        match conduit.try_write(&bytes) {
            Ok(written) => user.written += written,
            Err(error) => user.saw_error |= error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// Reads something; returns whether there may be more.
    fn read(&mut self, link: usize, side: usize, most: usize) -> bool {
        let user = &mut self.links[link].users[side];
        let Some(conduit) = user.conduit.as_ref().filter(|_| !user.closed_read) else { return false };
        let mut buf = vec![0; most];
        match conduit.try_read(&mut buf) {
            Ok(0) => user.saw_end = true,
            Ok(read) => {
                for (place, got) in buf[..read].iter().enumerate() {
                    assert_eq!(*got, byte(link, 1 - side, user.read + place), "link {link}, side {side}");
                }
                user.read += read;
                return true;
            }
            Err(error) => user.saw_error |= error.kind() != io::ErrorKind::WouldBlock,
        }
        false
    }

    fn close(&mut self, link: usize, side: usize) {
        let user = &mut self.links[link].users[side];
        let Some(conduit) = &user.conduit else { return };
        match self.rng.below(4) {
            0 => {
                conduit.close_read();
                user.closed_read = true;
            }
            1 => {
                conduit.close_write();
                user.closed_write = true;
            }
            2 => user.conduit = None,
            _ => self.links[link].connecting = None,
        }
    }

    /// The process of a host is gone, with everything it held.
    fn end(&mut self, host: HostId, power: bool) {
        if power {
            self.earth.net.process_died(host);
        } else {
            self.earth.net.power_lost(host);
            self.powered[host.0] = false;
        }
        for link in &mut self.links {
            for (side, user) in link.users.iter_mut().enumerate() {
                if link.hosts[side] == host {
                    user.conduit = None;
                }
            }
            if link.hosts[0] == host {
                link.connecting = None;
            }
            if link.hosts[1] == host {
                link.port = None;
            }
        }
    }

    fn boot(&mut self, host: HostId) {
        self.earth.net.boot(host);
        self.powered[host.0] = true;
    }

    fn fault(&mut self) {
        let (from, to) = (self.rng.pick(&[A, B, C]), self.rng.pick(&[A, B, C]));
        let net = self.earth.net.clone();
        match self.rng.weighted(&[6, 6, 2, 3, 3, 2, 1, 1, 1, 3]) {
            0 => net.cut(from, to),
            1 => net.join(from, to),
            2 => net.join_all(),
            3 => {
                let most = Duration::from_millis(self.rng.below(500) as u64);
                net.set_delay(from, to, Delay::between(Duration::ZERO, most));
            }
            4 => net.lose_segments(from, to, self.rng.below(300) as u32),
            5 => drop(net.reset_between(from, to)),
            6 => drop(net.reset_all(from)),
            7 => self.end(from, true),
            8 => self.end(from, false),
            _ => self.boot(from),
        }
    }

    fn step(&mut self) {
        let links = self.links.len();
        match self.rng.weighted(&[5, 40, 40, 3, 6, 20]) {
            0 => self.begin(),
            4 => self.fault(),
            5 => {
                let scale = self.rng.pick(&[10_u64, 1_000, 100_000, 8_000_000]);
                let time = 1 + self.rng.below(1_000) as u64;
                self.earth.run_for(Duration::from_micros(scale * time / 1_000));
            }
            _ if links == 0 => {}
            choice => {
                let (link, side) = (self.rng.below(links), self.rng.below(2));
                let bytes = self.rng.pick(&[1, 10, 300, 5_000]);
                match choice {
                    1 => self.write(link, side, bytes),
                    2 => drop(self.read(link, side, bytes)),
                    _ => self.close(link, side),
                }
            }
        }
        self.progress();
    }

    fn drain(&mut self) {
        for _ in 0..20 {
            self.earth.run_for(SECOND);
            self.progress();
            for link in 0..self.links.len() {
                for side in 0..2 {
                    while self.read(link, side, 10_000) {}
                }
            }
        }
    }

    /// All faults end and every side sends once more. Then all losses must be known.
    fn heal(&mut self) {
        self.earth.net.heal_links();
        for host in [A, B, C] {
            self.boot(host);
        }
        self.drain();
        for link in 0..self.links.len() {
            for side in 0..2 {
                self.write(link, side, 1);
            }
        }
        self.drain();
    }

    fn check(&self) -> usize {
        let mut alive = 0;
        for (number, link) in self.links.iter().enumerate() {
            for side in 0..2 {
                let (me, other) = (&link.users[side], &link.users[1 - side]);
                let told = me.saw_error || me.saw_end;
                let listens = me.conduit.is_some() && !me.closed_read;
                // A side that cannot send need not learn that the other one is gone.
                let talks = listens && !me.closed_write;
                if talks && (other.conduit.is_none() || other.saw_error) {
                    assert!(told, "link {number}: side {side} does not know that the other is gone");
                }
                if listens && other.conduit.is_some() && !me.saw_error && !other.saw_error {
                    assert_eq!(me.read, other.written, "link {number}: not all got to side {side}");
                    assert_eq!(me.saw_end, other.closed_write, "link {number}: the end at side {side}");
                    alive += 1;
                }
            }
        }
        alive
    }
}

/// Returns directions that were alive at the end, ends that saw errors, and the fingerprint.
fn soak(seed: u64) -> (usize, usize, u64) {
    let mut rng = Rng::new(seed);
    let earth = Earth::new(rng.u64());
    earth.net.set_window(rng.pick(&[500, 20_000, 256 * 1024]));
    let mut soak = Soak { earth, rng, links: Vec::new(), powered: [true; 3] };
    for _ in 0..400 {
        soak.step();
    }
    soak.heal();
    let alive = soak.check();
    let errors = soak.links.iter().flat_map(|link| &link.users).filter(|user| user.saw_error).count();
    soak.links.clear();
    soak.earth.run_for(70 * SECOND);
    assert_eq!(soak.earth.net.open_connections(), 0, "something is left behind");
    assert!(soak.earth.heart.events.lock().is_empty(), "something still happens");
    (alive, errors, soak.earth.heart.trace.fingerprint())
}

#[test]
fn under_all_faults_streams_stay_whole_or_both_sides_know() {
    let (mut alive, mut errors) = (0, 0);
    for seed in 0..500 {
        let run = std::panic::catch_unwind(|| soak(seed));
        let Ok((alive_now, errors_now, _)) = run else { panic!("seed {seed} fails, see above") };
        alive += alive_now;
        errors += errors_now;
    }
    assert!(alive > 2_000 && errors > 2_000, "{alive} directions alive at the end, {errors} errors");
}

#[test]
fn the_same_seed_soaks_in_the_same_way() {
    for seed in 0..20 {
        assert_eq!(soak(seed), soak(seed));
    }
}
