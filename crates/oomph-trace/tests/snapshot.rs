//! Reading snapshots: the recorded ones, and what is wrong with damaged and hostile ones.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::io::{Cursor, Read, Write as _};
use std::path::{Path, PathBuf};

use oomph_trace::{Action, BlockState, Content, Error, ProblemKind, Trace, snapshot};
use proptest::prelude::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(name)
}

fn open(name: &str) -> std::fs::File {
    std::fs::File::open(fixture(name)).unwrap()
}

fn unpacked(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = open(name);
    std::io::Read::read_to_end(&mut lzma_rust2::XzReader::new(file, true), &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<(Trace, Vec<oomph_trace::Problem>), Error> {
    snapshot::read_from(bytes, Path::new("test.pickle"))
}

#[test]
fn reads_every_recorded_snapshot() {
    for (name, events, segments, blocks) in [
        ("snapshots/gpt2_b8.pickle.xz", 13118, 132, 592),
        ("snapshots/lstm_lm.pickle.xz", 509, 16, 37),
        ("snapshots/resnet50_b32.pickle.xz", 6684, 109, 584),
        ("oom/long_tail.pickle.xz", 60000, 162, 667),
    ] {
        let (trace, problems) = snapshot::read(open(name), Path::new(name)).unwrap();
        assert_eq!(problems, [], "{name}");
        assert_eq!(
            (trace.events.len(), trace.segments.len(), trace.blocks.len()),
            (events, segments, blocks),
            "{name}"
        );
        assert_eq!(trace.settings.conf.as_deref(), Some(""));
        for segment in &trace.segments {
            let sum: u64 = trace.blocks_of(segment).iter().map(|b| b.size.0).sum();
            assert_eq!(sum, segment.size.0, "{name}: blocks fill their segment");
        }
    }
}

#[test]
fn events_keep_everything() {
    let (trace, _) = {
        let name = "oom/fragmentation.pickle.xz";
        snapshot::read(open(name), Path::new(name)).unwrap()
    };
    let first = trace.events.get(0);
    assert_eq!(first.action, Action::SegmentAlloc);
    assert_eq!(first.addr.0, 139_645_492_920_320);
    assert_eq!(first.size.0, 157_286_400);
    assert_eq!(first.time.0, 1_795_190_911_799_275);
    let last = trace.events.get(trace.events.len() - 1);
    assert_eq!(last.action, Action::Oom);
    assert_eq!(last.addr.0, 144_499_146_752);
    let user = trace
        .stacks
        .frames(last.stack)
        .find(|frame| frame.is_python(&trace.strings))
        .unwrap();
    assert_eq!(trace.strings.get(user.file), "/job/scenarios.py");
    assert_eq!(user.line, 60);
    assert_eq!(trace.blocks[0].state, BlockState::Allocated);
}

#[test]
fn compressed_files_are_told_by_their_contents() {
    let plain = unpacked("snapshots/lstm_lm.pickle.xz");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    gz.write_all(&plain).unwrap();
    let zst = ruzstd::encoding::compress_to_vec(
        plain.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    for (name, bytes) in [("a", plain), ("b", gz.finish().unwrap()), ("c", zst)] {
        let (trace, _) = snapshot::read(Cursor::new(bytes), Path::new(name)).unwrap();
        assert_eq!(trace.events.len(), 509);
    }
}

#[test]
fn a_cut_file_gives_what_is_there() {
    let whole = unpacked("snapshots/resnet50_b32.pickle.xz");
    let mut events = 0;
    for tenth in 2..10 {
        let (trace, problems) = read(&whole[..whole.len() * tenth / 10]).unwrap();
        assert_eq!(problems[0].kind, ProblemKind::Truncated);
        assert!(trace.events.len() >= events);
        events = trace.events.len();
        assert_eq!(trace.rows_of(0).len(), events);
    }
    assert!(events > 4000, "{events}");
}

fn message(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

#[test]
fn says_what_is_wrong() {
    let say = |bytes: &[u8], expected: &str| {
        let message = message(bytes);
        assert!(message.contains(expected), "{message}");
    };
    say(b"", "the file is empty (0 bytes)");
    say(
        b"PK\x03\x04 rest",
        "found a zip archive (a torch.save checkpoint",
    );
    say(b"\x80\x09}.", "a pickle of protocol 9; 2 to 5 are known");
    say(
        b"\x80\x04cos\nsystem\n(S'x'\ntR.",
        "opcode GLOBAL (os.system) would run code",
    );
    say(
        b"\x80\x04}(k",
        "opcode 0x6b does not occur in memory snapshots",
    );
    say(b"\x80\x04K\x01.", "a pickle of a single value");
    say(
        b"\x80\x04}(\x8c\x05modelK\x01u.",
        "a dictionary with the keys model",
    );
    say(b"\x80\x04", "ends at byte 2, before the end of the pickle");
}

#[test]
fn bombs_are_refused() {
    // A string that claims 4 GiB, memo entries far out, endless nesting.
    assert!(message(b"\x80\x04X\xff\xff\xff\xff").contains("claims 4294967295 bytes"));
    assert!(message(b"\x80\x04}r\xff\xff\xff\xff.").contains("memo entry"));
    let nested = [b"\x80\x04".as_slice(), &[b'('; 5000]].concat();
    assert!(message(&nested).contains("nested more than"));
    let nested_lists = [b"\x80\x04".as_slice(), &b"](".repeat(5000)].concat();
    assert!(message(&nested_lists).contains("nested more than"));
    // An .xz file that asks for a dictionary of 4 GiB.
    let mut xz = vec![
        0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4, 0xe6, 0xd6, 0xb4, 0x46,
    ];
    xz.extend([2, 0, 0x21, 1, 40, 0, 0, 0, 0, 0, 0, 0]);
    let error = snapshot::read(Cursor::new(xz), Path::new("bomb.xz")).unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("wants a dictionary"), "{why}");
}

#[test]
fn long_strings_have_a_budget() {
    const LENGTH: usize = 16 << 20;
    let string = [
        b"X",
        &(LENGTH as u32).to_le_bytes()[..],
        &vec![b'a'; LENGTH],
    ]
    .concat();
    let mut endless: Box<dyn Read> = Box::new(std::io::empty());
    for _ in 0..40 {
        endless = Box::new(endless.chain(Cursor::new(string.clone())));
    }
    let file = b"\x80\x04]("[..].chain(endless);
    let error = snapshot::read_from(file, Path::new("strings.pickle")).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("strings of more than 536870912 bytes"),
        "{error}"
    );
}

#[test]
fn names_do_not_act_on_terminals() {
    let mut file = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]eX".to_vec();
    let name = "\x1b]0;t\x07\u{9b}31m\n\u{202e}";
    file.extend((name.len() as u32).to_le_bytes());
    file.extend(name.as_bytes());
    file.extend(b"Nu.");
    let (trace, _) = read(&file).unwrap();
    let names: Vec<&str> = trace.strings.iter().map(|(_, name)| name).collect();
    assert!(
        names.contains(&"\\x1b]0;t\\x07\\x9b31m\\n\\u{202e}"),
        "{names:?}"
    );
}

#[test]
fn no_history_is_said() {
    // {"segments": [], "device_traces": [[]]}
    let bytes = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces](]eu.";
    let (trace, problems) = read(bytes).unwrap();
    assert!(trace.events.is_empty());
    assert_eq!(problems[0].kind, ProblemKind::NoHistory);
    assert!(problems[0].message.contains("_record_memory_history"));
}

/// A hand-written snapshot in the words of 2.0: blocks with a history, no addresses, no settings;
/// protocol 2 with BINPUT as the C++ writer emits it.
#[test]
fn reads_2_0_and_the_cpp_writer() {
    fn text(p: &mut Vec<u8>, s: &str) {
        p.push(b'X');
        p.extend((s.len() as u32).to_le_bytes());
        p.extend(s.as_bytes());
    }
    fn int(p: &mut Vec<u8>, n: i64) {
        p.extend([0x8a, 8]);
        p.extend(n.to_le_bytes());
    }
    let mut p: Vec<u8> = vec![0x80, 2];
    p.extend(b"}q\x00(");
    text(&mut p, "segments");
    p.extend(b"]q\x01(}q\x02(");
    for (key, value) in [
        ("device", 0),
        ("address", 0x7f00_0000_0000),
        ("total_size", 2 << 20),
        ("stream", 0),
    ] {
        text(&mut p, key);
        int(&mut p, value);
    }
    text(&mut p, "segment_type");
    text(&mut p, "small");
    text(&mut p, "blocks");
    p.extend(b"](");
    for (state, size) in [("active_allocated", 512_i64), ("inactive", (2 << 20) - 512)] {
        p.extend(b"}(");
        text(&mut p, "size");
        int(&mut p, size);
        text(&mut p, "state");
        text(&mut p, state);
        if state == "active_allocated" {
            text(&mut p, "history");
            p.extend(b"](}(");
            text(&mut p, "addr");
            int(&mut p, 0x7f00_0000_0000);
            text(&mut p, "real_size");
            int(&mut p, 400);
            text(&mut p, "frames");
            p.extend(b"](}(");
            text(&mut p, "filename");
            text(&mut p, "a.py");
            text(&mut p, "name");
            text(&mut p, "f");
            text(&mut p, "line");
            int(&mut p, 7);
            p.extend(b"ueue");
        }
        p.push(b'u');
    }
    p.extend(b"eue");
    text(&mut p, "device_traces");
    p.extend(b"](](}(");
    for (key, value) in [("addr", 0x7f00_0000_0000_i64), ("size", 400), ("stream", 0)] {
        text(&mut p, key);
        int(&mut p, value);
    }
    text(&mut p, "action");
    text(&mut p, "alloc");
    p.extend(b"ueeu.");
    let (trace, problems) = read(&p).unwrap();
    assert_eq!(problems, []);
    assert_eq!(trace.settings.conf, None);
    assert_eq!(trace.events.len(), 1);
    assert_eq!(trace.blocks.len(), 2);
    assert_eq!(trace.blocks[0].requested.0, 400);
    assert_eq!(trace.blocks[1].addr.0, 0x7f00_0000_0000 + 512);
    assert!(trace.segments[0].is_small);
    let frame = trace.stacks.frames(trace.blocks[0].stack).next().unwrap();
    assert_eq!(trace.strings.get(frame.file), "a.py");
}

#[test]
fn any_file_is_told_apart() {
    let at = |name: &str, bytes: &'static [u8]| oomph_trace::read(bytes, Path::new(name));
    let recorded = "snapshots/lstm_lm.pickle.xz";
    assert!(matches!(
        at("log", b"x\nCUDA error: out of memory\n"),
        Ok((Content::Messages(_), _))
    ));
    assert!(matches!(
        oomph_trace::read(open(recorded), Path::new(recorded)),
        Ok((Content::Trace(_), _))
    ));
    assert!(matches!(at("empty", b""), Err(Error::Empty { .. })));
    assert!(matches!(
        at("prose", b"all is well\n"),
        Err(Error::Format { .. })
    ));
    assert!(matches!(
        at("elf", b"\x7fELF\0\0\0\0"),
        Err(Error::Format { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever happens to the bytes, reading ends with a result.
    #[test]
    fn changed_bytes_never_break_the_reader(
        changes in proptest::collection::vec((0_usize..190_000, any::<u8>()), 1..30),
        cut in 0_usize..190_000,
    ) {
        use std::sync::OnceLock;
        static WHOLE: OnceLock<Vec<u8>> = OnceLock::new();
        let whole = WHOLE.get_or_init(|| unpacked("snapshots/lstm_lm.pickle.xz"));
        let mut bytes = whole.clone();
        for (at, value) in changes {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        let _ = read(&bytes);
        bytes.truncate(cut);
        let _ = read(&bytes);
    }

    #[test]
    fn random_bytes_never_break_the_reader(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000)
    ) {
        let mut pickle = vec![0x80, 4];
        pickle.extend(&bytes);
        let _ = read(&pickle);
        let _ = oomph_trace::text::read_from(bytes.as_slice());
    }

    /// Random runs of the opcodes that snapshots use get further than random bytes.
    #[test]
    fn random_programs_never_break_the_reader(
        ops in proptest::collection::vec(
            proptest::sample::select(vec![
                b"}".to_vec(), b"]".to_vec(), b"(".to_vec(), b"u".to_vec(), b"e".to_vec(),
                b"a".to_vec(), b"s".to_vec(), b"\x94".to_vec(), b"h\x00".to_vec(),
                b"h\x01".to_vec(), b"h\x02".to_vec(), b"K\x05".to_vec(), b"N".to_vec(),
                b"\x85".to_vec(), b"\x86".to_vec(), b"t".to_vec(), b"l".to_vec(), b"d".to_vec(),
                b"0".to_vec(), b"1".to_vec(), b"2".to_vec(), b"\x8c\x06action".to_vec(),
                b"\x8c\x05alloc".to_vec(), b"\x8c\x04size".to_vec(), b"\x8c\x06frames".to_vec(),
                b"\x8c\x08filename".to_vec(), b"\x8c\x04name".to_vec(), b"\x8c\x04line".to_vec(),
                b"\x8c\x08segments".to_vec(), b"\x8c\x0ddevice_traces".to_vec(),
                b"\x8c\x0atotal_size".to_vec(), b"\x8c\x06blocks".to_vec(),
                b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00".to_vec(),
            ]),
            0..200,
        ),
        stop in any::<bool>(),
    ) {
        let mut pickle = vec![0x80, 4];
        pickle.extend(ops.concat());
        if stop {
            pickle.push(b'.');
        }
        let _ = read(&pickle);
    }
}
