//! Imports that were interrupted.

use linux::os::Os;
use support::imports::{Lost, import, import_of, make_tree};
use support::memory::MemoryNode;

use super::*;

/// An import that was interrupted is wrong until it is repeated.
///
/// Proves: IM3, T4.
#[test]
fn an_interrupted_import_is_reported_until_it_is_repeated() {
    let node = MemoryNode::new(&["default"]);
    let driver = node.volumes_of(&node.options(), &Fakes::default());
    let old = node.pool("default").with_file_name("old");
    make_tree(&old, "content");
    let request = import_of(&Os::default(), old.clone(), "pvc", 8 * MIB);
    request.run(&Lost(&driver)).unwrap_err();
    let report = || reports(&node.options()).remove(0);
    wrong(&report(), About::Records, old.to_str().unwrap());
    import(&driver, &request).unwrap();
    assert_well(&report());
}
