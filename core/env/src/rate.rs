//! Rate limits by token buckets: per connecting host, and for log lines.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

use crate::time::{self, Instant};

#[derive(Clone, Debug)]
pub struct Bucket {
    /// Interval between tokens; zero means no limit.
    interval: Duration,
    size: u32,
    /// Time of the complete refill, if no more tokens are taken.
    full_at: Option<Instant>,
}

impl Bucket {
    /// Makes a full bucket. `per_second` 0 means no limit.
    pub fn new(per_second: u32, size: u32) -> Bucket {
        assert!(size > 0, "a bucket of size 0 never gives a token");
        let interval = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Bucket { interval, size, full_at: None }
    }

    /// Makes a bucket for delayable work: at most a twentieth of a second's work starts at once.
    pub fn paced(per_second: u32) -> Bucket {
        Bucket::new(per_second, (per_second / 20).max(1))
    }

    /// Returns the taken tokens, minus the refilled tokens.
    pub fn missing(&self, now: Instant) -> u32 {
        let tokens = self.refill(now).as_nanos().div_ceil(self.interval.as_nanos().max(1));
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Returns the available tokens.
    pub fn left(&self, now: Instant) -> u32 {
        self.size.saturating_sub(self.missing(now))
    }

    pub fn take(&mut self, now: Instant) -> bool {
        self.take_within(now, Duration::from_nanos(1)).is_some()
    }

    /// Takes the next token. Returns the wait before its use, or takes nothing and returns `None` if the wait
    /// would be `most` or longer.
    pub fn take_within(&mut self, now: Instant, most: Duration) -> Option<Duration> {
        let refill = self.refill(now) + self.interval;
        let wait = refill.saturating_sub(self.interval * self.size);
        if wait >= most {
            return None;
        }
        self.full_at = Some(now + refill);
        Some(wait)
    }

    fn refill(&self, now: Instant) -> Duration {
        self.full_at.map_or(Duration::ZERO, |at| at.saturating_since(now))
    }
}

/// A bucket per host. A /64 of IPv6 counts as a single host. All hosts beyond a number of hosts with used
/// buckets share a bucket.
#[derive(Debug)]
pub struct PerHost {
    full: Bucket,
    hosts_max: usize,
    used: Mutex<BTreeMap<IpAddr, Bucket>>,
}

impl PerHost {
    /// Gives each host a copy of the bucket `full`. Hosts beyond `hosts_max` share a bucket.
    pub fn new(full: Bucket, hosts_max: usize) -> PerHost {
        PerHost { full, hosts_max, used: Mutex::default() }
    }

    pub fn with<T>(&self, addr: IpAddr, now: Instant, act: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut used = self.used.lock();
        let mut key = host(addr);
        if !used.contains_key(&key) && used.len() >= self.hosts_max {
            used.retain(|_, bucket| bucket.missing(now) > 0);
            if used.len() >= self.hosts_max {
                key = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            }
        }
        act(used.entry(key).or_insert_with(|| self.full.clone()))
    }

    /// Takes a token of this host if available.
    pub fn take(&self, addr: IpAddr, now: Instant) -> bool {
        self.with(addr, now, |bucket| bucket.take(now))
    }
}

/// Pace of TLS handshakes for a listener. A host gets at most half of the pace, except for loopback.
#[derive(Debug)]
pub struct HandshakePace {
    all: Mutex<Bucket>,
    hosts: PerHost,
}

impl HandshakePace {
    /// Makes the pace. Hosts beyond `hosts_max` share a half.
    pub fn new(per_second: u32, hosts_max: usize) -> HandshakePace {
        let hosts = PerHost::new(Bucket::paced(per_second / 2), hosts_max);
        HandshakePace { all: Mutex::new(Bucket::paced(per_second)), hosts }
    }

    /// Reserves the next handshake of a host. Returns the wait, or `None` if the wait would be `most` or
    /// longer.
    pub fn reserve(&self, addr: IpAddr, now: Instant, most: Duration) -> Option<Duration> {
        let mut all = self.all.lock();
        let mut after = all.clone();
        let of_all = after.take_within(now, most)?;
        let of_host = if addr.to_canonical().is_loopback() {
            Duration::ZERO
        } else {
            self.hosts.with(addr, now, |bucket| bucket.take_within(now, most))?
        };
        *all = after;
        Some(of_host.max(of_all))
    }
}

/// Limits log lines caused by strangers to one per second.
#[derive(Debug)]
pub struct LogLimiter(Mutex<(Bucket, u64)>);

impl Default for LogLimiter {
    fn default() -> LogLimiter {
        LogLimiter(Mutex::new((Bucket::new(1, 1), 0)))
    }
}

impl LogLimiter {
    /// Returns the number of suppressed lines since the last line, or `None` to suppress this line.
    pub fn admit(&self) -> Option<u64> {
        let (bucket, suppressed) = &mut *self.0.lock();
        if bucket.take(time::now()) {
            return Some(std::mem::take(suppressed));
        }
        *suppressed += 1;
        None
    }
}

/// Returns the host of an address: the address itself, or its /64 for IPv6.
pub fn host(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS_MAX: usize = 100;

    fn taken(bucket: &mut Bucket, now: Instant) -> usize {
        (0..10_000).filter(|_| bucket.take(now)).count()
    }

    #[test]
    fn a_full_bucket_yields_its_size_and_then_its_rate() {
        let (mut bucket, begin) = (Bucket::new(100, 500), Instant::now());
        assert_eq!(bucket.left(begin), 500);
        assert_eq!(taken(&mut bucket, begin), 500);
        assert_eq!((bucket.missing(begin), bucket.left(begin)), (500, 0));
        assert_eq!(taken(&mut bucket, begin + Duration::from_millis(9)), 0);
        assert_eq!(taken(&mut bucket, begin + Duration::from_millis(10)), 1);
        assert_eq!(taken(&mut bucket, begin + Duration::from_secs(1)), 99);
        assert_eq!(taken(&mut bucket, begin + Duration::from_secs(3_600)), 500, "no more than its size");
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let (mut bucket, now) = (Bucket::new(0, 1), Instant::now());
        assert_eq!(taken(&mut bucket, now), 10_000);
        assert_eq!((bucket.missing(now), bucket.left(now)), (0, 1));
    }

    #[test]
    fn paced_work_starts_with_a_burst_and_continues_at_its_rate() {
        let (now, most) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = Bucket::paced(1_000);
        let waits: Vec<_> = (0..2_000).map_while(|_| bucket.take_within(now, most)).collect();
        assert_eq!(waits.len(), 1_049, "those of a second, and the burst");
        assert!(waits[..50].iter().all(Duration::is_zero));
        assert_eq!(waits[50], Duration::from_millis(1));
        assert_eq!(bucket.take_within(now, most), None);
        assert_eq!(bucket.take_within(now + most, most), Some(Duration::ZERO));
    }

    #[test]
    fn a_line_per_second_passes_with_the_count_of_suppressed_lines() {
        let limiter = LogLimiter::default();
        assert_eq!([limiter.admit(), limiter.admit(), limiter.admit()], [Some(0), None, None]);
        limiter.0.lock().0 = Bucket::new(1, 1);
        assert_eq!([limiter.admit(), limiter.admit()], [Some(2), None]);
    }

    fn v4(n: u32) -> IpAddr {
        IpAddr::from(n.to_be_bytes())
    }

    fn tries(hosts: &PerHost, addr: IpAddr, now: Instant) -> usize {
        (0..1_000).take_while(|_| hosts.take(addr, now)).count()
    }

    #[test]
    fn each_host_has_its_own_bucket() {
        let (hosts, now) = (PerHost::new(Bucket::new(10, 10), HOSTS_MAX), Instant::now());
        assert_eq!([tries(&hosts, v4(1), now), tries(&hosts, v4(1), now)], [10, 0]);
        assert_eq!(tries(&hosts, v4(2), now), 10);
        assert_eq!(tries(&hosts, v4(1), now + Duration::from_secs(1)), 10);
        let of_host = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        assert_eq!(tries(&hosts, of_host(1), now), 10);
        assert_eq!(tries(&hosts, of_host(2), now), 0, "a /64 is one host");
    }

    #[test]
    fn a_flooding_host_leaves_half_of_the_handshakes_to_others() {
        let (pace, now, most) = (HandshakePace::new(200, HOSTS_MAX), Instant::now(), Duration::from_secs(2));
        let begun = |addr, tries| (0..tries).filter_map(|_| pace.reserve(addr, now, most)).count();
        assert_eq!(begun(v4(1), 10_000), 204, "a hundred a second, and the burst");
        assert_eq!(begun(v4(1), 1), 0);
        assert!(pace.reserve(v4(2), now, most).is_some_and(|wait| wait < Duration::from_secs(1)));
        let local = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(begun(local, 10_000), 409 - 205, "the machine itself may use all that is left");
    }

    #[test]
    fn a_refused_handshake_costs_its_host_nothing() {
        let (pace, now, most) = (HandshakePace::new(200, HOSTS_MAX), Instant::now(), Duration::from_secs(2));
        let local = IpAddr::from([127, 0, 0, 1]);
        while pace.reserve(local, now, most).is_some() {}
        assert!((0..1_000).all(|_| pace.reserve(v4(1), now, most).is_none()));
        let later = now + Duration::from_millis(100);
        assert!(pace.reserve(v4(1), later, most).is_some(), "its own half is unused");
    }

    #[test]
    fn hosts_are_counted_up_to_a_bound_and_share_one_bucket_beyond() {
        let (hosts, now) = (PerHost::new(Bucket::new(10, 10), HOSTS_MAX), Instant::now());
        let all = u32::try_from(2 * HOSTS_MAX).unwrap();
        let tried: usize = (0..all).map(|n| tries(&hosts, v4(n), now)).sum();
        assert_eq!(tried, (HOSTS_MAX + 1) * 10);
        assert_eq!(hosts.used.lock().len(), HOSTS_MAX + 1);
        assert_eq!(tries(&hosts, v4(all), now + Duration::from_secs(1)), 10);
        assert_eq!(hosts.used.lock().len(), 1, "full buckets are forgotten");
    }
}
