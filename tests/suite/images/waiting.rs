//! Snapshots of images that wait for their turn while pods write.

use std::ffi::OsStr;

use linux::os::Step;
use support::faults::{Gate, Opened};

use super::*;

/// A snapshot has all that a pod wrote until its turn came, and not only until it was requested.
///
/// Proves: I3, SN22.
#[test]
fn a_snapshot_has_all_that_was_written_while_it_waited() {
    require!(loop_devices);
    let gate = Arc::new(Gate::default());
    let shared = Arc::clone(&gate);
    let fakes = Fakes::planned(move |step, _| {
        if step == Step::Share {
            shared.pass(OsStr::new("share"));
        }
        Ok(())
    });
    let rig = ImageRig::with(Disk::new("xfs").sized(2 << 30), fakes);
    let rig = &rig;
    let (volume, other) = (rig.image("pvc", 64 * MIB), rig.image("other", 64 * MIB));
    let other = &other;
    let target = rig.publish(&volume, "pod");
    let take = |name: &str, of: &Volume| {
        let taken = rig.driver().create_snapshot(&snapshot(name, of.id));
        taken.unwrap().id.to_string()
    };
    let late = vec![9; 1 << 20];
    let taken = std::thread::scope(|scope| {
        let _open = Opened(&gate);
        gate.shut("share");
        for name in ["s1", "s2", "s3", "s4"] {
            scope.spawn(move || take(name, other));
        }
        eventually("four copies run", || rig.measured_view().copies == 4);
        let waiting = scope.spawn(|| take("snap", &volume));
        eventually("a copy waits", || rig.measured_view().copies_waiting == 1);
        fs::write(target.join("late"), &late).unwrap();
        gate.open(|_| true);
        waiting.join().unwrap()
    });
    let mut restore = image("restored", 64 * MIB);
    restore.source = Some(SourceId::Snapshot(taken));
    let restored = rig.driver().create(&restore).unwrap();
    let at = rig.publish(&restored, "restored");
    assert_eq!(fs::read(at.join("late")).unwrap(), late);
}
