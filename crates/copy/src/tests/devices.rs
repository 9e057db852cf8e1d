//! Block volumes.

use std::os::fd::AsFd;

use support::loops::run;

use super::*;

/// A file behind a loop device, which ends with the value.
struct Device {
    image: PathBuf,
    path: PathBuf,
}

impl Device {
    fn new(image: &Path, size: u64) -> Self {
        fs::File::create(image).unwrap().set_len(size).unwrap();
        let mut command = Command::new("losetup");
        let output = command
            .args(["--find", "--show"])
            .arg(image)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let path = String::from_utf8(output.stdout).unwrap();
        Self {
            image: image.to_owned(),
            path: path.trim().into(),
        }
    }

    fn write(&self, bytes: &[u8], offset: u64) {
        let file = fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        file.sync_all().unwrap();
    }

    fn read(&self, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        fs::File::open(&self.path)
            .unwrap()
            .read_exact(&mut found)
            .unwrap();
        found
    }

    fn allocated(&self) -> u64 {
        rustix::fs::syncfs(fs::File::open(&self.image).unwrap().as_fd()).unwrap();
        std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&self.image).unwrap()) * 512
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

const SIZE: u64 = 64 << 20;

/// A device is copied into a larger one, with its holes, and goes on after an interruption.
#[test]
fn a_device_is_copied() {
    require!(loop_devices);
    let dir = tempfile::tempdir().unwrap();
    let source = Device::new(&dir.path().join("source"), SIZE + 4096);
    let target = Device::new(&dir.path().join("target"), 2 * SIZE);
    source.write(&numbers(20 << 20), 8 << 20);
    source.write(b"the end", SIZE + 4096 - 7);
    let copied = local(&source.path, &target.path, ID).unwrap();
    let size = usize::try_from(SIZE).unwrap() + 4096;
    assert!(source.read(size) == target.read(size));
    assert!(target.allocated() < 30 << 20, "{}", target.allocated());
    assert_eq!(fingerprint(&top(&source.path)).unwrap(), copied);

    // An interrupted run has other content where the source has none.
    target.write(&numbers(3 << 20), 40 << 20);
    target.write(&[7; 4096], 9 << 20);
    let (mut had, mut stream) = (Vec::new(), Vec::new());
    have(&top(&target.path), ID, &mut had).unwrap();
    send(&top(&source.path), &*had, &mut stream).unwrap();
    assert!(stream.len() < 2 << 20, "{}", stream.len());
    assert_eq!(
        receive(&top(&target.path), ID, &mut &*stream).unwrap(),
        copied
    );
    assert!(source.read(size) == target.read(size));
    clean(&top(&target.path), ID).unwrap();

    source.write(b"changed", 0);
    assert_ne!(fingerprint(&top(&source.path)).unwrap(), copied);
}

/// A smaller target, and one of the other kind, are refused.
#[test]
fn another_target_is_refused() {
    require!(loop_devices);
    let dir = tempfile::tempdir().unwrap();
    let source = Device::new(&dir.path().join("source"), SIZE);
    let small = Device::new(&dir.path().join("small"), SIZE / 2);
    let refused = local(&source.path, &small.path, ID);
    assert!(
        matches!(refused, Err(Error::TooSmall { .. })),
        "{refused:?}"
    );
    for (from, to) in [
        (&source.path, dir.path()),
        (&dir.path().to_owned(), &*small.path),
    ] {
        let refused = local(from, to, ID);
        let is_refused = matches!(refused, Err(Error::OtherKind | Error::NotEmpty { .. }));
        assert!(is_refused, "{refused:?}");
    }
    let refused = local(&source.path, &source.path, ID);
    assert!(matches!(refused, Err(Error::Same)), "{refused:?}");
}

/// A target with a mounted filesystem stays as it is.
#[test]
fn a_mounted_target_is_refused() {
    require!(loop_devices);
    let dir = tempfile::tempdir().unwrap();
    let source = Device::new(&dir.path().join("source"), SIZE);
    let target = Device::new(&dir.path().join("target"), SIZE);
    let at = dir.path().join("mount");
    fs::create_dir(&at).unwrap();
    run(Command::new("mkfs.ext4").arg("-q").arg(&target.path));
    run(Command::new("mount").arg(&target.path).arg(&at));
    let refused = local(&source.path, &target.path, ID);
    run(Command::new("umount").arg(&at));
    assert!(refused.is_err(), "{refused:?}");
}

/// A source that changes while it is sent is noticed.
#[test]
fn a_change_of_a_device_is_noticed() {
    require!(loop_devices);
    let dir = tempfile::tempdir().unwrap();
    let source = Device::new(&dir.path().join("source"), SIZE);
    source.write(&numbers(40 << 20), 0);
    let mut had = Vec::new();
    record::write(&mut had, &Had::End).unwrap();
    let mut written = 0;
    let image = fs::OpenOptions::new()
        .write(true)
        .open(&source.image)
        .unwrap();
    let stream = Writing(|bytes: usize| {
        written += bytes;
        if written > 20 << 20 {
            image.write_all_at(b"changed", 0).unwrap();
        }
    });
    let sent = send(&top(&source.path), &*had, stream);
    assert!(matches!(sent, Err(Error::Changed { .. })), "{sent:?}");
}

/// Does something after each write.
struct Writing<F>(F);

impl<F: FnMut(usize)> Write for Writing<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
