use super::*;

const NODE: &str = "node1";
const TIME: u64 = 1_800_000_000;
const NONCE: &str = "00112233445566778899aabbccddeeff";
const BODY: &[u8] = br#"{"node":"node1"}"#;
/// Made with Python's hmac and hashlib.
const REQUEST_MAC: &str = "ec4cfb7f6d85410a7e839ee6242c9053d3713d304cd619d0dbedede72319ce44";
const ANSWER_MAC: &str = "c567322add2fcb9c1c922f93c782913385c61a6396a26aa7f88b548b4be475d9";

fn key() -> Key {
    Key::new(b"0123456789abcdef\n").unwrap()
}

fn at(time: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(time)
}

fn request() -> Request {
    Request {
        node: NODE.into(),
        time: TIME,
        nonce: NONCE.into(),
    }
}

/// Proves: SV10.
#[test]
fn the_signatures_are_those_of_another_implementation() {
    let authorization = request().authorization(&key());
    let expected = format!("Rootcellar-HMAC-SHA256 {TIME}.{NONCE}.{REQUEST_MAC}");
    assert_eq!(authorization, expected);
    let read = Request::read(&key(), authorization.as_bytes(), NODE, at(TIME));
    assert_eq!(read, Ok(request()));
    let signature = request().signature(&key(), BODY, at(TIME + 7));
    assert_eq!(signature, format!("{}.{ANSWER_MAC}", TIME + 7));
    let verified = request().verify(&key(), signature.as_bytes(), BODY, at(TIME));
    assert_eq!(verified, Ok(()));
}

/// Proves: SV10.
#[test]
fn an_altered_request_is_refused() {
    let good = request().authorization(&key());
    let answer = request().signature(&key(), b"", at(TIME));
    let (_, mac_of_answer) = answer.split_once('.').unwrap();
    let other = Key::new(b"0123456789abcdeX").unwrap();
    let (time, mac) = (TIME.to_string(), REQUEST_MAC);
    let cases = [
        ("nothing", String::new()),
        ("another scheme", good.replace(SCHEME, "Bearer")),
        ("the key itself", "Bearer 0123456789abcdef".into()),
        ("another time", good.replace(&time, &(TIME + 1).to_string())),
        ("no time", good.replace(&time, "")),
        ("another nonce", good.replace("eeff", "eefe")),
        (
            "a part of the nonce is the time's",
            good.replace(".00", "0.0"),
        ),
        ("another key", request().authorization(&other)),
        ("another signature", good.replace("ce44", "ce45")),
        ("a shorter signature", good.replace("ce44", "ce")),
        ("half a digit", good.replace("ce44", "ce4")),
        ("no digits", good.replace("ce44", "ce4+")),
        ("no signature", good.replace(mac, "")),
        ("an answer's signature", good.replace(mac, mac_of_answer)),
        ("a further part", format!("{good}.")),
    ];
    for (what, value) in cases {
        assert_ne!(value, good, "{what}");
        let read = Request::read(&key(), value.as_bytes(), NODE, at(TIME));
        assert_eq!(read, Err(Refusal::Unsigned), "{what}: {value}");
    }
    let read = |node, value: &[u8]| Request::read(&key(), value, node, at(TIME));
    assert_eq!(read("node2", good.as_bytes()), Err(Refusal::Unsigned));
    assert_eq!(read(NODE, b"\xff"), Err(Refusal::Unsigned));
}

/// Proves: SV10.
#[test]
fn an_altered_answer_is_not_believed() {
    let good = request().signature(&key(), BODY, at(TIME));
    let verify = |request: Request, value: &str, body: &[u8]| {
        request.verify(&key(), value.as_bytes(), body, at(TIME))
    };
    assert_eq!(verify(request(), &good, BODY), Ok(()));
    let other = Key::new(b"0123456789abcdeX").unwrap();
    let values = [
        String::new(),
        "1".into(),
        good.replace("1800000000", "1800000001"),
        request().signature(&other, BODY, at(TIME)),
        format!("{TIME}.{REQUEST_MAC}"),
        format!("{TIME}."),
        good[..good.len() - 2].into(),
    ];
    for value in values {
        assert_eq!(
            verify(request(), &value, BODY),
            Err(Distrust::Unsigned),
            "{value}"
        );
    }
    for body in [&b""[..], &BODY[1..], b"{\"node\":\"node2\"}"] {
        assert_eq!(verify(request(), &good, body), Err(Distrust::Unsigned));
    }
    let changes: [fn(&mut Request); 2] = [
        |request| request.node = "node2".into(),
        |request| request.nonce = "00112233445566778899aabbccddeefe".into(),
    ];
    for change in changes {
        let mut other = request();
        change(&mut other);
        assert_eq!(verify(other, &good, BODY), Err(Distrust::Unsigned));
    }
}

/// Proves: SV10.
#[test]
fn a_request_is_good_for_five_minutes_in_both_directions() {
    let good = request().authorization(&key());
    let cases = [
        // the driver's clock against the controller's, in seconds
        (0, Ok(())),
        (300, Ok(())),
        (-300, Ok(())),
        (301, Err(Distrust::Ahead(Duration::from_secs(301)))),
        (-301, Err(Distrust::Behind(Duration::from_secs(301)))),
    ];
    for (by, clock) in cases {
        let there = at(TIME.saturating_add_signed(by));
        let read = Request::read(&key(), good.as_bytes(), NODE, there);
        let expected = match clock {
            Ok(()) => Ok(request()),
            Err(_) => Err(Refusal::Clock(request())),
        };
        assert_eq!(read, expected, "{by}");
        let signature = request().signature(&key(), b"", there);
        let verified = request().verify(&key(), signature.as_bytes(), b"", at(TIME));
        assert_eq!(verified, clock, "{by}");
    }
}

#[test]
fn each_request_has_a_nonce_of_its_own() {
    let requests = [(); 2].map(|()| Request::new(NODE, at(TIME)));
    assert_ne!(requests[0], requests[1]);
    assert_eq!(requests[0].nonce.len(), NONCE.len());
}

/// Proves: SV10.
#[test]
fn a_key_has_sixteen_characters_and_is_not_shown() {
    for short in ["", "\n", "0123456789abcde", " 0123456789abcde\n"] {
        assert_eq!(
            Key::new(short.as_bytes()).err(),
            Some(ShortKey),
            "{short:?}"
        );
    }
    assert!(!format!("{:?}", key()).contains("0123"));
}
