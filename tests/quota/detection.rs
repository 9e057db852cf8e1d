//! Whether sizes are held is what the kernel says, whatever the mount options say.

use support::cellar::{Cellar, MIB, append};
use support::variant::{ENFORCING, OTHERS};
use support::{kernel, require};

/// Every way to make and mount a filesystem has the state that the other tests take it to have.
#[test]
fn each_variant_is_what_it_is_taken_for() {
    require!(project_quota);
    for variant in ENFORCING.into_iter().chain(OTHERS) {
        let cellar = Cellar::new(variant);
        let state = kernel::state(cellar.at());
        // Beside project quota, ext4 tells of nothing, XFS of all kinds.
        assert_eq!(state, variant.state, "{}", variant.name);
    }
}

/// A volume's context and record say that its size is held exactly where the kernel holds it.
#[tokio::test]
async fn a_volume_says_what_holds_its_size() {
    require!(project_quota);
    for variant in ENFORCING.into_iter().chain(OTHERS) {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        let expected = if variant.enforces() {
            "project"
        } else {
            "none"
        };
        let said = served.enforcement("pvc", 4 * MIB).await;
        assert_eq!(said, expected, "{}", variant.name);
        let record = cellar.record("pvc");
        assert_eq!(record["enforcement"], expected, "{}", variant.name);

        let id = served.make("pvc", 4 * MIB).await;
        let target = cellar.publish(&mut served, &id, "pod").await;
        let (written, _) = append(&target.join("file"), 8 * MIB);
        assert_eq!(written < 8 * MIB, variant.enforces(), "{}", variant.name);
        served.stop();
    }
}
