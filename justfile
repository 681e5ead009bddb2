# The recipes of this repository; `just` lists them. Everything but `compat` needs only Rust.

default:
    @just --list

# All that must hold before a change lands.
verify: fmt lint docs test simulate

# Formatting, checked and not changed.
fmt:
    cargo fmt --all --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

test:
    cargo test --workspace

# A short simulation; a failing seed prints the line that repeats it.
simulate seeds="50":
    cargo run -q -p rowlock-sim -- --seeds {{seeds}}

# The demonstration: three processes, ten clients, one dead leader.
up *flags:
    cargo run --release -- up {{flags}}

# Only the tests with real processes.
processes:
    cargo test --test black_box

# Licences and advisories; needs cargo-deny.
deny:
    cargo deny check

# Other people's ZooKeeper clients against a cluster at `hosts`, with the scripts in the folder `suites`
# (`just compat ../shared/compat`): kazoo's own tests of locks, elections, barriers, counters, queues; raw frames;
# zkCli.sh.
compat suites hosts="127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183":
    {{suites}}/wire.sh {{hosts}}
    {{suites}}/zkcli.sh {{hosts}}
    ONLY="test_lock test_election test_barrier test_counter test_party test_queue test_partitioner test_watchers test_client" {{suites}}/kazoo_suite.sh {{hosts}}
