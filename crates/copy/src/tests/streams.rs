//! Streams that are damaged, or were made to mislead.

use linux::tree::{Attributes, Node, Source};

use super::*;

/// Files and names that differ from what was sent are found.
#[test]
fn a_damaged_copy_is_found() {
    let two = Two::new();
    let file = |name: &str| {
        let mut options = fs::OpenOptions::new();
        options.write(true).open(two.target().join(name)).unwrap()
    };
    let damages: [(&str, &dyn Fn()); 4] = [
        ("content", &|| {
            fs::write(two.target().join("file"), "ChunkReader").unwrap();
        }),
        ("size", &|| file("file").set_len(3).unwrap()),
        ("hole", &|| {
            file("hole").write_all_at(b"1", 5 << 20).unwrap();
        }),
        ("another", &|| {
            fs::write(two.target().join("another"), "").unwrap();
        }),
    ];
    fs::write(two.source().join("file"), "content").unwrap();
    let hole = fs::File::create(two.source().join("hole")).unwrap();
    hole.set_len(9 << 20).unwrap();
    let stream = two.stream().unwrap();
    for (damage, act) in damages {
        let mut parts = Parts {
            stream: &stream,
            at: 0,
            before_end: last_of(&stream),
            act,
        };
        let received = receive(&top(&two.target()), ID, &mut parts);
        let is_found = matches!(received, Err(Error::Differs { .. }));
        assert!(is_found, "{damage}: {received:?}");
        two.renew();
    }
}

/// A stream that does something before its last record.
struct Parts<'a> {
    stream: &'a [u8],
    at: usize,
    before_end: usize,
    act: &'a dyn Fn(),
}

impl Read for Parts<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.before_end {
            (self.act)();
        }
        let end = if self.at < self.before_end {
            self.before_end
        } else {
            self.stream.len()
        };
        let length = buffer.len().min(end - self.at);
        buffer[..length].copy_from_slice(&self.stream[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

fn attributes() -> Attributes {
    Attributes::of(&Source::new(dir(Path::new("/tmp"))).unwrap()).unwrap()
}

fn hostile() -> Vec<Record> {
    let names: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"/etc", b"a\0b"];
    let with_names = names.iter().flat_map(|name| {
        let name = name.to_vec();
        [
            Record::Enter {
                name: name.clone(),
                in_place: false,
            },
            Record::File {
                name: name.clone(),
                in_place: false,
                size: 0,
                several: false,
            },
            Record::Link {
                name: b"ok".to_vec(),
                first: [&*name, b"\0..\0x"].concat(),
            },
            Record::Node {
                name,
                node: Node::Link(c"target".to_owned()),
                attributes: attributes(),
            },
        ]
    });
    let chunk = |offset| {
        Record::Chunk(Chunk {
            offset,
            length: 1,
            sum: 0,
            pieces: None,
        })
    };
    let others = [
        chunk(0),
        Record::Close(attributes()),
        Record::Device {
            size: 1,
            sector: 512,
        },
        Record::End(0),
        Record::Begin {
            version: record::VERSION,
            bytes: 0,
        },
    ];
    with_names.chain(others).collect()
}

/// A stream cannot leave the target, and its records must make sense.
#[test]
fn hostile_streams_are_refused() {
    let records = hostile();
    let outside = tempfile::tempdir().unwrap();
    for record in records {
        let target = outside.path().join("target");
        fs::create_dir(&target).unwrap();
        let mut stream = Vec::new();
        let begin = Record::Begin {
            version: record::VERSION,
            bytes: 1,
        };
        record::write(&mut stream, &begin).unwrap();
        record::write(&mut stream, &record).unwrap();
        let received = receive(&top(&target), ID, &mut &*stream);
        let is_refused = matches!(
            received,
            Err(Error::Stream { .. } | Error::OtherKind | Error::At { .. })
        );
        assert!(is_refused, "{record:?}: {received:?}");
        assert_eq!(
            fs::read_dir(outside.path()).unwrap().count(),
            1,
            "{record:?}"
        );
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "{record:?}");
        fs::remove_dir(&target).unwrap();
    }
}

/// Chunks of a file that are not in order, too long, or outside of it.
#[test]
fn hostile_chunks_are_refused() {
    let chunks = [
        (1, 1, None),
        (0, 0, None),
        (0, 2 << 20, None),
        (1 << 20, 1 << 20, None),
        (0, 8, Some(vec![(4, 8)])),
        (0, 8, Some(vec![(4, 2), (0, 2)])),
    ];
    for (offset, length, pieces) in chunks {
        let two = Two::new();
        let mut stream = Vec::new();
        let chunk = Chunk {
            offset,
            length,
            sum: 0,
            pieces,
        };
        for record in [
            Record::Begin {
                version: record::VERSION,
                bytes: 1,
            },
            Record::File {
                name: b"file".to_vec(),
                in_place: false,
                size: 1 << 20,
                several: false,
            },
            Record::Chunk(chunk.clone()),
        ] {
            record::write(&mut stream, &record).unwrap();
        }
        stream.extend([0; 64]);
        let received = two.receive(&stream);
        assert!(
            matches!(received, Err(Error::Stream { .. })),
            "{chunk:?}: {received:?}"
        );
    }
}

/// The list of the target's content is cut off.
#[test]
fn a_missing_state_is_refused() {
    let two = Two::new();
    fs::write(two.source().join("file"), "content").unwrap();
    let mut had = Vec::new();
    let sums = vec![(0, 1)];
    let path = b"file".to_vec();
    record::write(&mut had, &Had::Chunks { path, sums }).unwrap();
    let sent = send(&top(&two.source()), &*had, io::sink());
    assert!(matches!(sent, Err(Error::Stream { .. })), "{sent:?}");
}
