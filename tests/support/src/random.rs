//! The seed of everything random in a test.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use proptest::test_runner::{Config, RngSeed};

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
