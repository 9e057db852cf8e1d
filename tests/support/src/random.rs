//! Random tests: the seed of everything random in a test, the operations, and the player of their sequences.

mod op;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};

pub use op::Op;

/// The environment variable that gives the seed.
const SEED: &str = "ROOTCELLAR_SEED";

/// The seed in the environment, else one at random. It is printed, and the output of a failed test shows
/// it, so that its case can be repeated.
pub fn seed() -> u64 {
    let given = std::env::var(SEED).ok();
    let seed = given.map_or_else(
        || RandomState::new().build_hasher().finish(),
        |text| text.parse().expect(SEED),
    );
    let thread = std::thread::current();
    eprintln!("{}: {SEED}={seed}", thread.name().unwrap_or("?"));
    seed
}

/// The configuration of a property with this number of cases, unless `PROPTEST_CASES` is set.
pub fn config(cases: u32) -> Config {
    let default = Config::default();
    Config {
        cases: std::env::var("PROPTEST_CASES").map_or(cases, |_| default.cases),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..default
    }
}

/// Plays random sequences of operations, `cases` at a time, until they had this many steps together. A failure is
/// shown with the shortest sequence that leads to it.
pub fn play(
    cases: u32,
    steps: usize,
    sequences: &impl Strategy<Value = Vec<Op>>,
    case: impl Fn(&[Op]),
) {
    let played = AtomicUsize::new(0);
    while played.load(Ordering::Relaxed) < steps {
        let config = Config {
            max_shrink_iters: 4096,
            // In milliseconds.
            max_shrink_time: 60_000,
            ..config(cases)
        };
        let outcome = TestRunner::new(config).run(sequences, |sequence| {
            case(&sequence);
            played.fetch_add(sequence.len(), Ordering::Relaxed);
            Ok(())
        });
        if let Err(error) = outcome {
            let TestError::Fail(reason, sequence) = error else {
                panic!("{error}");
            };
            let lines: Vec<String> = sequence.iter().map(|op| format!("{op:?}")).collect();
            panic!("{reason}\nafter\n{}", lines.join("\n"));
        }
    }
}
