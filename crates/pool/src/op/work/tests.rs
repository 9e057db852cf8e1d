use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;

use linux::os::Os;
use linux::quota::KernelQuotas;
use tempfile::TempDir;

use crate::{CALLS_AT_ONCE, Context, KnownPools};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(1);

/// A pool that nobody opens.
fn pool() -> (TempDir, Pool) {
    let dir = tempfile::tempdir().unwrap();
    let context = Context {
        node: "n1".parse().unwrap(),
        os: Os::default(),
        quotas: Arc::new(KernelQuotas),
        known_pools: Arc::new(KnownPools::open(Os::default(), &dir.path().join("state")).unwrap()),
        root_devices: Vec::new(),
        claims: Arc::default(),
        timeout: TIMEOUT,
    };
    let options = format!("fast={}", dir.path().join("pool").display());
    let pool = Pool::new(options.parse().unwrap(), context).unwrap();
    (dir, pool)
}

fn wait_for_silence(pool: &Pool) -> Duration {
    let began = Instant::now();
    loop {
        if let Some(silence) = pool.silence() {
            return silence;
        }
        assert!(began.elapsed() < Duration::from_mins(2), "no silence");
        sleep(Duration::from_millis(10));
    }
}

/// Proves: DK7.
#[test]
fn so_many_calls_are_at_work_and_no_more() {
    let (_dir, pool) = pool();
    let mut calls: Vec<_> = (0..CALLS_AT_ONCE).map(|_| pool.begin().unwrap()).collect();
    let Err(Error::Crowded { calls: at_work, .. }) = pool.begin() else {
        panic!("one more");
    };
    assert_eq!(at_work, CALLS_AT_ONCE);
    let _own = pool.begin_own();
    calls.pop();
    calls.push(pool.begin().unwrap());
    assert!(pool.begin().is_err());
}

/// Proves: DK6.
#[test]
fn work_that_advances_is_no_silence_and_the_end_of_work_ends_it() {
    let (_dir, pool) = pool();
    assert_eq!(pool.silence(), None);
    let (other, work) = (pool.begin_own(), pool.begin().unwrap());
    let before = wait_for_silence(&pool);
    assert!(before >= TIMEOUT);
    let advanced = Instant::now();
    work.advance();
    assert!(pool.silence() >= Some(before), "the other waits still");
    other.advance();
    let silence = pool.silence();
    assert!(silence <= Some(advanced.elapsed()), "both have advanced");
    wait_for_silence(&pool);
    drop(work);
    assert!(pool.silence().is_some(), "the other waits still");
    drop(other);
    assert_eq!(pool.silence(), None);
}

/// Proves: DK6.
#[test]
fn work_that_rests_is_no_silence_until_it_goes_on() {
    let (_dir, pool) = pool();
    let (other, work) = (pool.begin().unwrap(), pool.begin_own());
    let answer = work.wait_for_disk(|| {
        wait_for_silence(&pool);
        drop(other);
        pool.silence()
    });
    assert_eq!(answer, None, "nothing else waits");
    wait_for_silence(&pool);
}

/// Proves: DK6.
#[test]
fn short_steps_advance_now_and_then() {
    let (_dir, pool) = pool();
    let work = pool.begin().unwrap();
    work.step();
    let before = wait_for_silence(&pool);
    for _ in 0..STEPS {
        work.step();
    }
    assert!(pool.silence() < Some(before));
}

/// Proves: DK6, DK7.
#[test]
fn paused_work_is_neither_silence_nor_a_call_at_work() {
    let (_dir, pool) = pool();
    let mut calls: Vec<_> = (0..CALLS_AT_ONCE).map(|_| pool.begin().unwrap()).collect();
    let paused = calls.pop().unwrap();
    let other = paused.pause(|| pool.begin().unwrap());
    assert!(pool.begin().is_err(), "the paused work is at work again");
    calls.push(other);
    drop(calls);
    wait_for_silence(&pool);
    assert_eq!(paused.pause(|| pool.silence()), None);
    wait_for_silence(&pool);
    drop(paused);
    assert_eq!(pool.silence(), None);
}
