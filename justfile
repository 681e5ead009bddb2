# The recipes of this repository; `just` lists them. Everything but `compat` needs only Rust.

default:
    @just --list

# All that must hold before a change lands.
verify: fmt lint docs core test simulate deterministic

# Formatting, checked and not changed.
fmt:
    cargo fmt --all --check

lint:
    cargo clippy --workspace --all-targets -- -D warnings

docs:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# A node without the features `access` and `cluster`.
core:
    cargo clippy -p rowlock-coordinator --no-default-features --all-targets -- -D warnings
    cargo test -p rowlock-coordinator --no-default-features

test:
    cargo test --workspace --no-fail-fast

# Simulated clusters, 60 simulated seconds each with all faults. A failing seed prints the line that repeats it.
simulate seeds="200":
    cargo run -q --profile sim -p rowlock-sim -- swarm --seeds {{seeds}} --seconds 60

# Every deliberate mistake in nodes and clients must be noticed.
mutants seeds="200":
    cargo test -q --profile sim -p rowlock-sim --features mutants --lib --test cli -- broken_promise the_rules_of_the_model
    cargo run -q --profile sim -p rowlock-sim --features mutants -- mutants --seeds {{seeds}}

# Every named decision of nodes and clients, turned into its opposite in the runs that reach it: prints which checker notices.
guards seeds="3" seconds="8":
    cargo run -q --profile sim -p rowlock-sim --features mutants -- mutants --guards --seeds {{seeds}} --seconds {{seconds}}

# The same guards, or those named, flipped in the tests of the crates: prints the first test that fails.
guards-by-tests *names:
    python3 lab/guards/by_tests.py {{ if names == "" { "< core/env/src/guards.txt" } else { names } }}

# A seed means the same run in every process: whole clusters, each seed in two of them, byte for byte.
deterministic seeds="100" seconds="20":
    cargo run -q --profile sim -p rowlock-sim -- swarm --seeds {{seeds}} --seconds {{seconds}} --fingerprints > target/fingerprints.one
    cargo run -q --profile sim -p rowlock-sim -- swarm --seeds {{seeds}} --seconds {{seconds}} --fingerprints > target/fingerprints.other
    cmp target/fingerprints.one target/fingerprints.other

# Instructions and allocations per operation, beside what was kept in `lab/instructions/`: a regression shows on a noisy machine
# too. Needs valgrind. `just instructions --keep` keeps the new figures, `just instructions acquire` counts a part.
instructions *flags:
    #!/usr/bin/env bash
    command -v valgrind > /dev/null || { echo "instructions are counted by valgrind, which is not installed"; exit 1; }
    failed=
    for part in proto state coordinator; do
        cargo bench -q -p rowlock-$part --bench instructions -- {{flags}} || failed="$failed $part"
    done
    if [ -n "$failed" ]; then echo "failed:$failed"; exit 1; fi

# Rowlock beside ZooKeeper, etcd, Redis and RedLock on the same work, in turns; a quarter of an hour. Needs Debian's packages
# zookeeper, etcd-server and redis-server: what is not installed is left out and named. The report is in target/bench/report.
bench *flags:
    cargo build --release -q -p rowlock -p rowlock-bench
    target/release/rowlock-bench run {{flags}}

# The same beside etcd 3.5 and ZooKeeper 3.9, which `lab/bench/rivals` fetches from PyPI. Needs Python, and Java for ZooKeeper.
bench-rivals *flags:
    lab/bench/rivals target/bench/rivals
    cargo build --release -q -p rowlock -p rowlock-bench
    target/release/rowlock-bench run --rivals target/bench/rivals --out target/bench/rivals-report {{flags}}

# The parts that most changes are made for, in two minutes.
bench-quick *flags: (bench "--quick" "--out" "target/bench/quick" flags)

# What an operation costs while sessions, znodes, watches, queues, locks and their paths grow.
bench-scale *flags: (bench "--scale" "--out" "target/bench/scale" flags)

# Rowlock when all its clients return at once, and under up to three times the load that it can do.
bench-pressure *flags: (bench "--pressure" "--out" "target/bench/pressure" flags)

# Flushes, frames, switches, system calls, task polls and allocations of one lock that is taken now and then, and of idle nodes,
# beside what was kept in `lab/bench/cycle`. Needs Linux, perf and root. `just cycle --keep` keeps the new counts.
cycle *flags:
    cargo build --release -q -p rowlock -p rowlock-bench
    lab/bench/cycle/count.py {{flags}}

# Draws where the time of one lock goes that is taken now and then: needs Linux, perf and root.
cycle-picture:
    cargo build --release -q -p rowlock -p rowlock-bench
    lab/bench/cycle/draw.py

# The demonstration: three processes, ten clients, one dead leader.
up *flags:
    cargo run -- up {{flags}}

# How much there is to read, beside the most that is allowed (tests/tidy/weight.rs).
weight:
    @cargo test -q --test tidy there_is_no_more_to_read -- --nocapture | grep -E '^(\||Names)'

# Which faults, workloads, checkers and mutants there are for each promise of docs/guarantees.md.
promises:
    @cargo test -q --test tidy each_promise -- --nocapture | grep -E '^\|'

# Only the tests with real processes.
processes:
    cargo test --test black_box

# The largest requests of every kind, sent by so many connections one after another at processes of an optimised build. With ten it
# takes two minutes and 4 GB of memory (docs/threat-model.md, section 1).
frames connections="10":
    cargo build --profile sim --bin rowlock
    ROWLOCK_TEST_FRAMES={{connections}} ROWLOCK_TEST_BINARY="$PWD/target/sim/rowlock" cargo test --test black_box largest_frames -- --nocapture

# Nodes that come back without their data under their old numbers, or with an older copy of it: so many rounds of each.
wiped rounds="20":
    WIPED_ROUNDS={{rounds}} cargo test --test black_box wiped_nodes -- --test-threads 1

# Fuzzes one reader of what others wrote, for so many seconds: decode_request, decode_response, peer_frames, entries, wal,
# snapshot, config, import, report. Needs cargo-fuzz (`cargo install cargo-fuzz`) and a C++ compiler; the stable compiler will
# do. What it finds is put into lab/fuzz/artifacts, and found again by `just fuzz TARGET 0`, which runs all inputs once.
fuzz target seconds="600":
    #!/usr/bin/env bash
    set -euo pipefail
    # For `-Cpasses` and its like alone: no code of ours needs a nightly compiler.
    export RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    run="cargo fuzz run --fuzz-dir lab/fuzz --features libfuzzer --sanitizer none"
    test -d lab/fuzz/corpus/{{target}} || $run seeds -- -runs=0
    mkdir -p lab/fuzz/artifacts/{{target}}
    limits="-rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=16384 -print_final_stats=1"
    if [ {{seconds}} = 0 ]; then
        $run {{target}} lab/fuzz/corpus/{{target}} lab/fuzz/artifacts/{{target}} -- $limits -runs=0
    else
        $run {{target}} -- $limits -max_total_time={{seconds}}
    fi

# A holder is stopped past its session and writes late, at each resource of tests/examples/fencing that is installed: so many rounds
# with its fence and without it. S3 needs a Python with boto3 and moto[server]: ROWLOCK_FENCING_PYTHON.
fencing rounds="50":
    ROWLOCK_FENCING={{rounds}} cargo test --test black_box fencing -- --nocapture

# All that a release is made of: crates, wheel, packages for npm, jars, archive, Debian package, site. CONTRIBUTING.md, Packages and releases.
package: crates wheel npm java archive deb site

# Packs the crates that are published, as a registry gets them, into target/package.
crates:
    cargo package --workspace --no-verify --exclude rowlock-compat --exclude rowlock-bench --exclude base2histogram

# The program as it is packaged: target/dist/rowlock, and target/dist/stripped without the line numbers of backtraces.
dist:
    #!/usr/bin/env bash
    set -euo pipefail
    # The program names no folder of the machine that it was built on.
    export RUSTFLAGS="--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$PWD=rowlock"
    export ROWLOCK_COMMIT=$(git rev-parse --short=12 HEAD)
    cargo build --profile dist --locked --bin rowlock
    strip -o target/dist/stripped target/dist/rowlock
    ls -l target/dist/stripped

# The wheel: the program, and the client for Python; in target/packages. Needs python3.
wheel: dist
    .ci/wheel target/dist/stripped target/packages

# The same for npm, with the client for TypeScript: `rowlock`, and a package with the program of this platform. Needs npm.
npm: dist
    .ci/npm target/dist/stripped target/packages

# The client for Java and its adapters, in target/packages. Needs a JDK.
java:
    .ci/java target/packages

# Installs each package that was built into an empty place, and runs `rowlock up --check` from there.
packages-test:
    mkdir -p target/packages
    cp target/archive/*.tar.gz target/debian/*.deb target/packages 2>/dev/null || true
    .ci/packages-test target/packages

# What goes along with the program: manual pages, completions, licenses of others; in target/package-files. Needs python3.
package-files: dist
    #!/usr/bin/env bash
    set -euo pipefail
    files=target/package-files
    rm -rf $files
    mkdir -p $files/man
    target/dist/rowlock __manuals $files/man
    target/dist/rowlock completions bash > $files/rowlock.bash
    target/dist/rowlock completions zsh > $files/_rowlock
    target/dist/rowlock completions fish > $files/rowlock.fish
    .ci/licenses > $files/LICENSES-OF-OTHERS

# The program and what goes along, for machines without Debian's packages: target/archive, with its SHA-256.
archive: package-files
    #!/usr/bin/env bash
    set -euo pipefail
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    name=rowlock-$version-$(rustc -vV | sed -n 's/^host: //p')
    rm -rf target/archive
    mkdir -p target/archive/$name
    # The line numbers of backtraces stay in target/dist/rowlock.
    cp target/dist/stripped target/archive/$name/rowlock
    .ci/pack-docs target/archive/$name
    cp -r LICENSE-* target/package-files/* target/archive/$name
    cd target/archive
    # The same bytes for the same commit.
    tar --sort=name --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -cf - $name | gzip -n > $name.tar.gz
    sha256sum $name.tar.gz > $name.tar.gz.sha256
    ls -l $name/rowlock $name.tar.gz

# The Debian package, in target/debian. The line numbers of backtraces stay in target/dist/rowlock.
deb: package-files
    .ci/deb target/dist/stripped target/package-files target/debian

# The pages for a browser, in target/site; needs mdBook (`cargo install mdbook`). Links that leave `docs` lead to the repository.
site:
    #!/usr/bin/env bash
    set -euo pipefail
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
    rm -rf target/site target/site-pages
    cp -r docs target/site-pages
    sed -i "s|](\.\./|]($repository/blob/v$version/|g" target/site-pages/*.md
    # mdBook makes `index.html` of a README.md, and leaves links to it as they are.
    find target/site-pages -name '*.md' ! -name SUMMARY.md -exec sed -i 's|](\([^):]*\)README\.md|](\1index.md|g' {} +
    mdbook build target/site-pages --dest-dir "$PWD/target/site"

# Alerts, unit and manifests, with the tools of those who run them: promtool (Debian: prometheus), systemd-analyze and
# kubernetes-validate (`pip install kubernetes-validate`).
deploy-files:
    promtool check rules deploy/alerts.yml
    promtool test rules deploy/alerts.test.yml
    systemd-analyze security --offline=true --threshold=30 deploy/rowlock.service
    kubernetes-validate --strict deploy/kubernetes/rowlock.yaml

# The Rust examples of the pages in a stranger's crate, built on the packed crates.
packaged:
    .ci/packaged

# The OpenAPI document held to real answers for so many seconds; needs schemathesis (`pip install schemathesis`).
openapi seconds="600":
    cargo build --bin rowlock
    .ci/openapi {{seconds}}

# Licences and advisories; needs cargo-deny (`cargo install --locked cargo-deny`).
deny:
    cargo deny check

# Advisories alone, by the database of today: what it says about a crate of ours goes into .cargo/advisories.toml.
advisories:
    cargo deny fetch db
    cargo deny check --disable-fetch advisories

# Other people's ZooKeeper clients against a cluster at `hosts`, with the scripts in the folder `suites`
# (`just compat ../shared/compat`): raw frames, zkCli.sh, the C client, Curator, and all of kazoo's own tests. Every part
# runs, whatever the others say.
compat suites hosts="127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183":
    #!/usr/bin/env bash
    failed=
    for part in wire zkcli c_client curator kazoo_suite; do
        echo "== $part"
        {{suites}}/$part.sh {{hosts}} || failed="$failed $part"
    done
    echo "== jvm (Curator's EnsembleTracker, Flink)"
    .ci/jvm/run {{hosts}} || failed="$failed jvm"
    echo "== diff (beside Apache ZooKeeper, 200 sequences)"
    zookeeper=127.0.0.1:21811,127.0.0.1:21812,127.0.0.1:21813
    {{suites}}/zkctl.sh start
    cargo run --release -q -p rowlock-compat -- diff --left $zookeeper --right {{hosts}} --seeds 200 || failed="$failed diff"
    {{suites}}/zkctl.sh stop
    if [ -n "$failed" ]; then echo "failed:$failed"; exit 1; fi

# Random request sequences on Apache ZooKeeper and on Rowlock must be answered alike.
compat-diff zookeeper="127.0.0.1:21811,127.0.0.1:21812,127.0.0.1:21813" rowlock="127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183" seeds="1000":
    cargo run --release -q -p rowlock-compat -- diff --left {{zookeeper}} --right {{rowlock}} --seeds {{seeds}}
