//! Processes that know nothing of a simulation: their streams, tasks and timers are `rowlock_env`'s.

use rowlock_env::net::{Listener, Stream};
use rowlock_env::{task, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::executor::Simulation;

const SECOND: Duration = Duration::from_secs(1);

/// Answers each frame (length, then bytes) with the same.
async fn serve() {
    let listener = Listener::bind("0.0.0.0:2181").await.expect("binds");
    loop {
        let stream = listener.accept().await;
        task::spawn("echo", async move {
            let (mut reader, mut writer) = stream.into_split();
            while let Ok(bytes) = reader.read_u32().await {
                let mut frame = vec![0; bytes as usize];
                if reader.read_exact(&mut frame).await.is_err() {
                    break;
                }
                let answer = [&bytes.to_be_bytes(), &frame[..]].concat();
                if writer.write_all(&answer).await.is_err() {
                    break;
                }
            }
        });
    }
}

/// Sends frames and counts the answers; reconnects when anything fails or takes more than a second.
async fn ask(answers: Arc<AtomicU64>) {
    loop {
        if let Ok(mut stream) = Stream::connect("server:2181", SECOND).await {
            while time::timeout(SECOND, exchange(&mut stream, &answers)).await.is_ok_and(|it| it.is_ok()) {}
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

async fn exchange(stream: &mut Stream, answers: &AtomicU64) -> io::Result<()> {
    let number = answers.load(Ordering::Relaxed);
    let frame = vec![number as u8; (number as usize * 97) % 9_000];
    stream.write_u32(frame.len() as u32).await?;
    stream.write_all(&frame).await?;
    let mut answer = vec![0; stream.read_u32().await? as usize];
    stream.read_exact(&mut answer).await?;
    assert_eq!(answer, frame);
    answers.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

struct Pair {
    sim: Simulation,
    server: HostId,
    client: HostId,
    answers: Arc<AtomicU64>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let sim = Simulation::new(seed, false);
        let server = sim.add_host("server", "node", Ipv4Addr::new(10, 0, 0, 1));
        let client = sim.add_host("client", "client", Ipv4Addr::new(10, 0, 1, 1));
        let answers = Arc::new(AtomicU64::new(0));
        sim.boot(client);
        sim.spawn(client, "ask", ask(answers.clone()));
        let pair = Pair { sim, server, client, answers };
        pair.start();
        pair
    }

    fn start(&self) {
        self.sim.boot(self.server);
        self.sim.spawn(self.server, "serve", serve());
    }

    /// Answers within the next seconds.
    fn answers_in(&self, seconds: u32) -> u64 {
        let before = self.answers.load(Ordering::Relaxed);
        self.sim.run_until(self.sim.now() + SECOND * seconds).expect("nothing is violated");
        self.answers.load(Ordering::Relaxed) - before
    }
}

#[test]
fn a_client_finds_its_server_again_after_every_fault() {
    for seed in 0..3 {
        let pair = Pair::new(seed);
        let (sim, net) = (&pair.sim, pair.sim.network());
        assert!(pair.answers_in(10) > 500);

        net.cut(pair.server, pair.client);
        assert!(pair.answers_in(10) <= 1, "at most what was on its way");
        net.join(pair.server, pair.client);
        assert!(pair.answers_in(10) > 100);

        sim.kill(pair.server).expect("no destructor panics");
        assert!(pair.answers_in(5) <= 1);
        pair.start();
        assert!(pair.answers_in(10) > 100);

        sim.power_off(pair.server).expect("no destructor panics");
        assert!(pair.answers_in(5) <= 1);
        pair.start();
        assert!(pair.answers_in(10) > 100);

        sim.pause(pair.server);
        assert!(pair.answers_in(5) <= 1);
        sim.resume(pair.server);
        assert!(pair.answers_in(10) > 100);

        net.lose_segments(pair.client, pair.server, 20);
        net.reset_all(pair.client);
        assert!(pair.answers_in(20) > 50);

        for host in [pair.server, pair.client] {
            sim.kill(host).expect("no destructor panics");
        }
        sim.run_until(sim.now() + SECOND * 70).expect("nothing is violated");
        assert_eq!(net.open_connections(), 0);
    }
}

#[test]
fn a_seed_gives_processes_the_same_life_each_time() {
    let run = |seed| {
        let pair = Pair::new(seed);
        pair.sim.network().lose_segments(pair.client, pair.server, 10);
        let answers = pair.answers_in(5);
        (answers, pair.sim.trace().fingerprint(), pair.sim.network().counters().segments)
    };
    for seed in 0..2 {
        assert_eq!(run(seed), run(seed));
        assert_ne!(run(seed).1, run(seed + 100).1);
    }
}
