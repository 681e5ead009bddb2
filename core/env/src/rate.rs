//! Rate limits: a token bucket, one for each host that connects, and one for log lines.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

use crate::time::{self, Instant};

/// A bucket of tokens that refills steadily.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// Time in which one token comes; zero: no limit.
    interval: Duration,
    /// Tokens of a full bucket.
    size: u32,
    /// When the bucket is full again if nothing is taken.
    full_at: Option<Instant>,
}

impl Bucket {
    /// A full bucket. `per_second` 0: no limit.
    pub fn new(per_second: u32, size: u32) -> Bucket {
        assert!(size > 0, "a bucket of size 0 never gives a token");
        let interval = Duration::from_secs(1).checked_div(per_second).unwrap_or_default();
        Bucket { interval, size, full_at: None }
    }

    /// A bucket for work that may wait for its turn: it gives a twentieth of a second's work at once.
    pub fn paced(per_second: u32) -> Bucket {
        Bucket::new(per_second, (per_second / 20).max(1))
    }

    /// Tokens that have been taken and not come back.
    pub fn missing(&self, now: Instant) -> u32 {
        let tokens = self.refill(now).as_nanos().div_ceil(self.interval.as_nanos().max(1));
        u32::try_from(tokens).unwrap_or(u32::MAX)
    }

    /// Tokens that can be taken now.
    pub fn left(&self, now: Instant) -> u32 {
        self.size.saturating_sub(self.missing(now))
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.take_within(now, Duration::from_nanos(1)).is_some()
    }

    /// Takes the next token. Returns how long the caller must wait before it uses it, or `None`, and takes
    /// nothing, if that is `most` or longer.
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

/// A bucket for each host. A /64 of IPv6 is one host. Beyond a number of hosts whose buckets are not full,
/// all further hosts share one.
#[derive(Debug)]
pub struct PerHost {
    full: Bucket,
    hosts_max: usize,
    used: Mutex<BTreeMap<IpAddr, Bucket>>,
}

impl PerHost {
    /// Each host begins with a copy of the bucket `full`. Beyond `hosts_max` hosts they share one.
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

    /// Takes a token of this host if there is one.
    pub fn take(&self, addr: IpAddr, now: Instant) -> bool {
        self.with(addr, now, |bucket| bucket.take(now))
    }
}

/// The pace at which TLS handshakes of one listener begin. A host gets at most half of it, except for
/// loopback.
#[derive(Debug)]
pub struct HandshakePace {
    all: Mutex<Bucket>,
    hosts: PerHost,
}

impl HandshakePace {
    /// Beyond `hosts_max` hosts they share one half.
    pub fn new(per_second: u32, hosts_max: usize) -> HandshakePace {
        let hosts = PerHost::new(Bucket::paced(per_second / 2), hosts_max);
        HandshakePace { all: Mutex::new(Bucket::paced(per_second)), hosts }
    }

    /// Reserves the next handshake of this host. Returns how long it must wait, or `None` if that is `most`
    /// or longer.
    pub fn reserve(&self, addr: IpAddr, now: Instant, most: Duration) -> Option<Duration> {
        let of_host = if addr.to_canonical().is_loopback() {
            Duration::ZERO
        } else {
            self.hosts.with(addr, now, |bucket| bucket.take_within(now, most))?
        };
        let of_all = self.all.lock().take_within(now, most)?;
        Some(of_host.max(of_all))
    }
}

/// Limits log lines that strangers can cause to one a second.
#[derive(Debug)]
pub struct LogLimiter(Mutex<(Bucket, u64)>);

impl Default for LogLimiter {
    fn default() -> LogLimiter {
        LogLimiter(Mutex::new((Bucket::new(1, 1), 0)))
    }
}

impl LogLimiter {
    /// Returns how many lines were suppressed since the last one if a line may be written now.
    pub fn admit(&self) -> Option<u64> {
        let (bucket, suppressed) = &mut *self.0.lock();
        if bucket.take(time::now()) {
            return Some(std::mem::take(suppressed));
        }
        *suppressed += 1;
        None
    }
}

/// The host that an address belongs to: the address itself, for IPv6 its /64.
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
    fn a_full_bucket_gives_its_size_and_then_its_rate() {
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
    fn paced_work_begins_in_a_burst_then_at_its_rate_and_never_too_late() {
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
    fn one_line_a_second_is_admitted_and_says_how_many_were_suppressed() {
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
    fn each_host_has_a_bucket_of_its_own() {
        let (hosts, now) = (PerHost::new(Bucket::new(10, 10), HOSTS_MAX), Instant::now());
        assert_eq!([tries(&hosts, v4(1), now), tries(&hosts, v4(1), now)], [10, 0]);
        assert_eq!(tries(&hosts, v4(2), now), 10);
        assert_eq!(tries(&hosts, v4(1), now + Duration::from_secs(1)), 10);
        let of_host = |n: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n]);
        assert_eq!(tries(&hosts, of_host(1), now), 10);
        assert_eq!(tries(&hosts, of_host(2), now), 0, "a /64 is one host");
    }

    #[test]
    fn a_host_that_floods_with_handshakes_leaves_half_of_them_to_others() {
        let (pace, now, most) = (HandshakePace::new(200, HOSTS_MAX), Instant::now(), Duration::from_secs(2));
        let begun = |addr, tries| (0..tries).filter_map(|_| pace.reserve(addr, now, most)).count();
        assert_eq!(begun(v4(1), 10_000), 204, "a hundred a second, and the burst");
        assert_eq!(begun(v4(1), 1), 0);
        assert!(pace.reserve(v4(2), now, most).is_some_and(|wait| wait < Duration::from_secs(1)));
        let local = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(begun(local, 10_000), 409 - 205, "the machine itself may use all that is left");
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
