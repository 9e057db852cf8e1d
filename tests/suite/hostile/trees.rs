//! Volumes full of the files that pods can create in them. Every call treats them like any other
//! volume, and removal deletes every entry that can be deleted. Nothing outside is changed or
//! opened.

mod pod;
mod swap;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rootcellar::csi;

use support::disk::{Disk, FILESYSTEMS};
use support::loops::{LoopMount, run};
use support::messages::{Answer, publish};
use support::picture::{Picture, picture};
use support::server::{Clients, Server};
use support::{Node, directory_of, eventually, fuse, names, require, skip};
use swap::{Nodes, Swapper};

/// A served node with a pool on its own disk, and foreign files next to it.
struct Place {
    // Dropped in this order: the users of the disk before the disk.
    clients: Clients,
    server: Option<Server>,
    http: SocketAddr,
    disk: LoopMount,
    outside: PathBuf,
    before: Picture,
    node: Node,
}

impl Place {
    async fn new(filesystem: &'static str) -> Self {
        let node = Node::new();
        // Without quota, so that a directory may replace a subvolume.
        let disk = node.make_disk(Disk::new(filesystem).with_other_data());
        let outside = node.path("outside");
        fs::create_dir_all(outside.join("directory")).unwrap();
        for name in ["file", "precious", "directory/file"] {
            fs::write(outside.join(name), "precious").unwrap();
        }
        let http = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let http = http.unwrap();
        let server = serve(&node, &disk, http).await;
        Self {
            clients: server.clients().await,
            server: Some(server),
            http,
            disk,
            before: picture(&outside, &[]),
            outside,
            node,
        }
    }

    /// Stops the server, calls `meanwhile`, and starts another server.
    async fn restart(&mut self, meanwhile: impl FnOnce()) {
        assert_eq!(self.server.take().unwrap().stop(), Some(0));
        meanwhile();
        let server = serve(&self.node, &self.disk, self.http).await;
        self.clients = server.clients().await;
        self.server = Some(server);
    }

    /// As [`Place::new`], with the volume `pvc` and its id.
    async fn with_volume(filesystem: &'static str) -> (Self, String) {
        let mut place = Self::new(filesystem).await;
        let id = place.clients.make("pvc", 1 << 20).await;
        (place, id)
    }

    /// The `data/` of the volume with this name.
    fn data(&self, volume: &str) -> PathBuf {
        directory_of(&self.disk.path().join("volumes"), volume).join("data")
    }

    /// Replaces the `data/` of an empty volume by a plain directory, as on every filesystem but
    /// btrfs and as in old volumes on btrfs. A subvolume is deleted at once, a directory entry by
    /// entry.
    fn make_plain(&self, volume: &str) {
        let data = self.data(volume);
        fs::remove_dir(&data).unwrap();
        fs::create_dir(&data).unwrap();
    }

    fn trash(&self) -> PathBuf {
        self.disk.path().join(".rootcellar/trash")
    }

    /// A value from the metrics page.
    fn metric(&self, name: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let start = format!("rootcellar_{name}{{pool=\"default\"}} ");
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(&start));
        value
            .unwrap_or_else(|| panic!("no {name} in {page}"))
            .to_owned()
    }

    /// The peak memory of the server, in KiB.
    fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.server().id())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    #[track_caller]
    fn assert_untouched(&self, case: &str) {
        assert_eq!(picture(&self.outside, &[]), self.before, "{case}");
        let log = self.server().log();
        assert!(!log.contains("panicked"), "{case}: {log}");
    }
}

async fn serve(node: &Node, disk: &LoopMount, http: SocketAddr) -> Server {
    let option = format!("default={},init,reserve=0", disk.path().display());
    let mut command = Server::command(node, &[option]);
    command.arg("--http").arg(http.to_string());
    let server = Server::spawn(node, &mut command);
    server.wait_ready().await;
    server
}

async fn stats(clients: &mut Clients, id: &str, target: &Path) -> Answer<usize> {
    let request = csi::NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: target.to_str().unwrap().to_owned(),
        ..Default::default()
    };
    let answer = clients.node.node_get_volume_stats(request).await?;
    Ok(answer.into_inner().usage.len())
}

fn mount_tmpfs(at: &Path) {
    run(Command::new("mount").args(["-t", "tmpfs", "pod"]).arg(at));
}

/// Mounts inside a volume as a pod could: a tmpfs, a bind mount of the directory outside, and a
/// filesystem on which every access hangs. It hangs until the result is dropped.
fn mount_inside(target: &Path, outside: &Path) -> Option<fs::File> {
    for name in ["memory", "bound", "hanging"] {
        fs::create_dir(target.join(name)).unwrap();
    }
    mount_tmpfs(&target.join("memory"));
    fs::write(target.join("memory/file"), "").unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .arg(outside)
        .arg(target.join("bound")));
    fuse::mount_hanging(&target.join("hanging"))
}

/// A volume with any content that a pod left is published again, measured, unpublished, deleted and
/// reclaimed to the last entry like any other. Nothing outside changes.
///
/// Proves: R8.
#[tokio::test]
async fn what_pods_leave_hinders_nothing_and_goes() {
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let (mut place, id) = Place::with_volume(filesystem).await;
        let (first, second) = (place.node.target("first"), place.node.target("second"));
        place.clients.publish(publish(&id, &first)).await.unwrap();
        pod::fill(&first, &place.outside, filesystem);
        let Some(_daemon) = mount_inside(&first, &place.outside) else {
            skip!("no FUSE");
        };
        for target in [&first, &second] {
            place.clients.publish(publish(&id, target)).await.unwrap();
            let kinds = stats(&mut place.clients, &id, target).await.unwrap();
            assert_eq!(kinds, 2, "{filesystem}: bytes and inodes");
        }
        for target in [&first, &second] {
            place.clients.unpublish_soon(&id, target).await;
        }
        place.clients.delete(&id).await.unwrap();
        eventually("everything is reclaimed", || {
            names(&place.trash()).is_empty()
        });
        let log = place.server().log();
        assert!(
            !log.contains("cannot be removed yet"),
            "{filesystem}: {log}"
        );
        let peak = place.peak_memory();
        assert!(peak < 64 << 10, "{filesystem}: {peak} KiB");
        place.assert_untouched(filesystem);
    }
}

/// A mount in the pool's own view of a volume, even of a filesystem that hangs, is not entered. The
/// driver reports it, tries it again, and reclaims everything else. The rest is removed after the
/// unmount.
///
/// Proves: R9.
#[tokio::test]
async fn an_entry_that_resists_is_reported_and_reclaimed_later() {
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let (mut place, id) = Place::with_volume(filesystem).await;
        let other = place.clients.make("other", 1 << 20).await;
        place.make_plain("pvc");
        let (data, target) = (place.data("pvc"), place.node.target("pod"));
        fs::create_dir_all(data.join("inner/directory")).unwrap();
        fs::write(data.join("inner/file"), "").unwrap();
        fs::write(place.data("other").join("file"), "").unwrap();
        let Some(daemon) = mount_inside(&data, &place.outside) else {
            skip!("no FUSE");
        };
        place.clients.publish(publish(&id, &target)).await.unwrap();
        stats(&mut place.clients, &id, &target).await.unwrap();
        place.clients.unpublish_soon(&id, &target).await;
        place.clients.delete(&id).await.unwrap();
        place.clients.delete(&other).await.unwrap();

        let metrics = || ["pool_trash", "pool_trash_resisting"].map(|name| place.metric(name));
        eventually("only what resists is left", || metrics() == ["1", "1"]);
        let left = place.trash().join(&names(&place.trash())[0]).join("data");
        assert_eq!(names(&left), ["bound", "hanging", "memory"]);
        assert_eq!(names(&left.join("memory")), ["file"], "{filesystem}");
        let log = place.server().log();
        assert!(
            log.contains("an entry of the trash cannot be removed yet"),
            "{log}"
        );
        place.assert_untouched(filesystem);

        drop(daemon);
        for name in names(&left) {
            run(Command::new("umount").arg(left.join(name)));
        }
        eventually("the rest goes", || metrics() == ["0", "0"]);
        assert!(names(&place.trash()).is_empty());
        place.assert_untouched(filesystem);
    }
}

/// A volume that is a subvolume is removed with the mounts in it. Nothing behind the mounts
/// changes.
///
/// Proves: R9.
#[tokio::test]
async fn a_subvolume_goes_with_the_mounts_in_it_and_nothing_behind_them() {
    require!(loop_devices);
    let (mut place, id) = Place::with_volume("btrfs").await;
    let data = place.data("pvc");
    let Some(_daemon) = mount_inside(&data, &place.outside) else {
        skip!("no FUSE");
    };
    place.clients.delete(&id).await.unwrap();
    eventually("it is gone", || place.metric("pool_trash") == "0");
    assert!(names(&place.trash()).is_empty());
    place.assert_untouched("btrfs");
}

/// No device, FIFO or socket in a volume is ever opened, and no link is followed, although entries
/// are replaced while the volume is published, measured, quarantined and reclaimed.
///
/// Proves: R8.
#[tokio::test]
async fn nothing_is_opened_while_entries_are_swapped() {
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let mut place = Place::new(filesystem).await;
        let nodes = Nodes::new(place.disk.path().join("nodes"));
        let id = place.clients.make("pvc", 1 << 20).await;
        place.clients.make("damaged", 1 << 20).await;
        for volume in ["pvc", "damaged"] {
            place.make_plain(volume);
        }
        let data = ["pvc", "damaged"].map(|volume| place.data(volume));
        for data in &data {
            let still = data.join("still");
            for dir in [&still, &data.join("swapped")] {
                fs::create_dir(dir).unwrap();
            }
            nodes.link_into(&still);
        }
        let swappers = data
            .each_ref()
            .map(|data| Swapper::start(&data.join("swapped"), &nodes, &place.outside));
        let target = place.node.target("pod");
        place.clients.publish(publish(&id, &target)).await.unwrap();
        let mut options = fs::File::options();
        options.read(true).custom_flags(nix::libc::O_NONBLOCK);
        options.open(target.join("still/fifo/fifo")).unwrap();
        assert_eq!(
            nodes.opened(),
            ["fifo"],
            "the watch sees through every mount"
        );

        for _ in 0..5 {
            stats(&mut place.clients, &id, &target).await.unwrap();
            let second = place.node.target("second");
            place.clients.publish(publish(&id, &second)).await.unwrap();
            place.clients.unpublish_soon(&id, &second).await;
        }
        let record = data[1].with_file_name("volume.json");
        place
            .restart(|| fs::write(record, "damaged").unwrap())
            .await;
        assert_eq!(place.metric("pool_quarantined"), "1");
        for _ in 0..3 {
            place.restart(|| ()).await;
        }
        place.clients.unpublish_soon(&id, &target).await;
        place.clients.delete(&id).await.unwrap();
        let replacements = swappers[0].replacements();
        eventually("the reclaimer and the swapper meet", || {
            swappers[0].replacements() > replacements + 2000
                && place.metric("reclaimed_entries_total") != "0"
        });
        drop(swappers);
        eventually("everything is reclaimed", || {
            names(&place.trash()).is_empty()
        });
        assert_eq!(nodes.opened(), [""; 0], "{filesystem}");
        place.assert_untouched(filesystem);
    }
}
