//! Deletions and undeletions together with creations that fill the pool.

use std::thread;
use std::time::Instant;

use super::*;
use support::DEADLINE;

/// Four workers each delete and bring back this many volumes, while creations need the space. Afterwards the pool has
/// reserved the sizes of its volumes and nothing else, and a creation gets exactly the capacity.
fn many(driver: &Running, each: usize, size: u64) {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| scope.spawn(move || work(driver, worker, each, size)))
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
    driver.wait_for_trash();
    let live = driver.list(usize::MAX, "").unwrap().objects;
    let sizes: u64 = live.iter().map(|volume| volume.size.0).sum();
    let pools = driver.pools();
    assert_eq!(pools[0].measured_view().reserved, Bytes(sizes));

    let capacity = || driver.capacity(&Class::default(), &[]).unwrap().largest.0;
    let mut request = create("rest", 0);
    eventually("the capacity can be had", || {
        request.required = Bytes(capacity());
        driver.create(&request).is_ok()
    });
    assert!(capacity() < MIB);
    for volume in driver.list(usize::MAX, "").unwrap().objects {
        driver.delete_now(&volume.id.to_string()).unwrap();
    }
    driver.purge(None).unwrap();
    driver.wait_for_trash();
    assert_eq!(pools[0].measured_view().reserved, Bytes::ZERO);
    assert_eq!(pools[0].measured_view().kept, 0);
}

fn work(driver: &Running, worker: usize, each: usize, size: u64) {
    let (mut deleted, mut round) = (0, 0);
    let mut progress = Instant::now();
    while deleted < each {
        let status = || driver.pools()[0].measured_view();
        assert!(
            progress.elapsed() < DEADLINE,
            "{deleted} deleted: {:?}",
            status()
        );
        round += 1;
        let volume = format!("{worker}-{}", round % 5);
        match driver.create(&create(&volume, size)) {
            Ok(made) => {
                driver.delete(&made.id.to_string()).unwrap();
                deleted += 1;
                progress = Instant::now();
                if round % 3 > 0 {
                    continue;
                }
                match undelete(driver, &made, None) {
                    Ok(_) => assert_eq!(driver.get(&made.id.to_string()).unwrap(), made),
                    // Another worker had the space.
                    Err(error) => {
                        let code = error.code(Operation::Volume);
                        let fine = [
                            Code::NotFound,
                            Code::ResourceExhausted,
                            Code::Unavailable,
                            Code::Aborted,
                        ];
                        assert!(fine.contains(&code), "{error}");
                    }
                }
            }
            Err(error) => {
                let code = error.code(Operation::CreateVolume);
                let fine = [Code::Unavailable, Code::ResourceExhausted];
                assert!(fine.contains(&code), "{error}");
                thread::yield_now();
            }
        }
    }
    // The others would wait forever if those that have ended left the pool full.
    let live = driver.list(usize::MAX, "").unwrap().objects.into_iter();
    let own = live.filter(|volume| volume.name.as_str().starts_with(&format!("{worker}-")));
    for volume in own.skip(1) {
        driver.delete(&volume.id.to_string()).unwrap();
    }
}

/// Where nobody counts, the sizes of kept volumes stay reserved.
///
/// Proves: UD6, UD9.
#[test]
fn no_reservation_is_lost_or_doubled() {
    require!(mount_namespace);
    let keeping = Keeping::new(",keep=1h");
    many(keeping.driver(), 250, SIZE / 20);
}

/// Where the kernel counts, kept volumes have what they use.
///
/// Proves: UD6, UD9.
#[test]
fn no_counted_reservation_is_lost_or_doubled() {
    require!(simple_quota);
    let node = Node::new();
    let _mount = node.make_pool_disk(Disk::new("btrfs").with_simple_quota());
    let option = format!("{},keep=1h", node.own_pool_option());
    many(&node.volumes_of(&[option], &Fakes::default()), 50, 32 * MIB);
}
