// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! The JSON of every command against the published schema: the keywords of JSON Schema that ours use.

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;

use serde_json::Value;

use crate::support::{Place, p256_key, repository};

/// Collects the reasons for which a value does not have the form of a schema.
struct Validator {
    root: Value,
    wrong: Vec<String>,
}

impl Validator {
    fn check(&mut self, value: &Value, schema: &Value, at: &str) {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let path = reference.strip_prefix('#').expect("a local reference");
            let target = self.root.pointer(path).expect("a definition").clone();
            self.check(value, &target, at);
        }
        let mut fail = |why: String| self.wrong.push(format!("{at}: {why}"));
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !types.is_empty() && !types.iter().any(|name| is_of_type(value, name)) {
            fail(format!("{value} is no {types:?}"));
        }
        if schema.get("const").is_some_and(|only| only != value) {
            fail(format!("{value} is not {}", schema["const"]));
        }
        if schema["enum"].as_array().is_some_and(|any| !any.contains(value)) {
            fail(format!("{value} is not one of {}", schema["enum"]));
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(name).is_none() {
                fail(format!("{name} is missing"));
            }
        }
        let alternatives = [&schema["anyOf"], &schema["oneOf"]];
        for any in alternatives.into_iter().filter_map(Value::as_array) {
            let fits = |alternative: &&Value| reasons(&self.root, value, alternative).is_empty();
            if !any.iter().any(|alternative| fits(&alternative)) {
                self.wrong.push(format!("{at}: {value} fits none of {any:?}"));
            }
        }
        for (name, field) in value.as_object().into_iter().flatten() {
            let at = format!("{at}/{name}");
            match (&schema["properties"][name], &schema["additionalProperties"]) {
                (Value::Null, more @ Value::Object(_)) => self.check(field, more, &at),
                (Value::Null, _) => {}
                (known, _) => self.check(field, known, &at),
            }
        }
        let items = value.as_array().filter(|_| schema.get("items").is_some());
        for (number, item) in items.into_iter().flatten().enumerate() {
            self.check(item, &schema["items"], &format!("{at}/{number}"));
        }
    }
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("a type that this validator does not know: {other}"),
    }
}

fn reasons(root: &Value, value: &Value, schema: &Value) -> Vec<String> {
    let mut validator = Validator { root: root.clone(), wrong: Vec::new() };
    validator.check(value, schema, "");
    validator.wrong
}

/// Fails if the JSON of a command is not what its schema says, or has a field that the schema does not name.
#[track_caller]
pub(crate) fn assert_valid(json: &str, name: &str) {
    let file = repository().join(format!("docs/reference/{name}.schema.json"));
    let text = fs::read_to_string(file).expect("a schema; `make docs` writes it");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let value: Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(reasons(&schema, &value, &schema), Vec::<String>::new(), "{name}");
    let fields = value.as_object().filter(|_| schema["additionalProperties"].is_null());
    for field in fields.into_iter().flat_map(|fields| fields.keys()) {
        assert!(!schema["properties"][field].is_null(), "{name} does not name {field}");
    }
}

#[test]
fn validator_finds_what_is_wrong() {
    let schema = serde_json::json!({
        "type": "object", "required": ["a"],
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"anyOf": [{"const": 1}, {"type": "null"}]}},
        "$defs": {"n": {"type": ["integer", "null"]}},
    });
    let wrong = |value: Value| reasons(&schema, &value, &schema).len();
    assert_eq!(wrong(serde_json::json!({"a": 1, "b": null})), 0);
    assert_eq!(wrong(serde_json::json!({"b": 1})), 1);
    assert_eq!(wrong(serde_json::json!({"a": "1", "b": 2})), 2);
    assert_eq!(wrong(serde_json::json!([])), 2);
}

#[test]
fn json_of_every_part_of_inspect_matches_the_schema() {
    let place = Place::new();
    for fixture in ["aes-ni-vm", "qat-heartbeat", "h100-host", "arm-a15-router"] {
        let root = repository().join("crates/inspect/fixtures").join(fixture);
        let root = root.to_str().unwrap();
        for part in ["", "cpu", "openssl", "qat", "gpu", "kernel", "used"] {
            let mut args = vec!["inspect", "--json", "--root", root];
            if !part.is_empty() {
                args.insert(1, part);
            }
            assert_valid(&place.run(&args).done().data, "inspect");
        }
        let doctor = place.run(&["doctor", "--json", "--root", root]);
        assert_valid(&doctor.data, "doctor");
        for subject in ["ipsec", "openvpn", "tls"] {
            let advice = place.run(&["advise", subject, "--json", "--root", root]);
            assert_valid(&advice.done().data, "advise");
        }
    }
}

#[test]
fn json_of_status_keys_and_check_matches_the_schemas() {
    let place = Place::new();
    let key = place.write("key.pem", &p256_key());
    let key = key.to_str().unwrap();
    place.run(&["key", "import", "www", key]).done();
    assert_valid(&place.run(&["key", "list", "--json"]).done().data, "keys");
    let show = place.run(&["key", "show", "www", "--json"]);
    assert_valid(&show.done().data, "key");
    let folder = place.path("");
    let bulk = ["key", "import", "--from-dir", folder.to_str().unwrap(), "--json"];
    assert_valid(&place.run(&bulk).done().data, "key-import");
    let module = ["--provider", key, "--preload", key];
    let recipe = place.run(&[&["gateway", "nginx", "--json"][..], &module].concat());
    assert_valid(&recipe.done().data, "recipe");
    let root = place.path("root");
    fs::create_dir(&root).unwrap();
    let write = ["gateway", "nginx", "--json", "--write", "--dry-run", "--root"];
    let write = [&write[..], &[root.to_str().unwrap()], &module].concat();
    assert_valid(&place.run(&write).done().data, "written");
    place.run(&["cert", "authority"]).done();
    assert_valid(&place.run(&["cert", "list", "--json"]).done().data, "certs");
    let _node = place.up(&[]);
    assert_valid(&place.run(&["status", "--json"]).done().data, "status");
    let sessions = place.run(&["status", "--sessions", "--json"]);
    assert_valid(&sessions.done().data, "sessions");
    // No server runs here: the check fails, and its answer still has the form.
    let check = place.run(&["gateway", "check", "nginx", "--json", "--pid", "1"]);
    assert_valid(&check.data, "check");
}

/// A link.toml whose end a is this machine, with its keys; `None` where no address but loopback is there.
fn link_of_this_machine(place: &Place) -> Option<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: the kernel only chooses the address.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    let keys = place.path("keys");
    let text = format!(
        "name = \"mr\"\nmembers = 2\n[ends.a]\naddress = \"{address}\"\ninner = \"10.97.0.1\"\ncertificates = \"{}/a\"\n\
         [ends.b]\naddress = \"192.0.2.1\"\ninner = \"10.97.0.2\"\n",
        keys.display()
    );
    let file = place.write("link.toml", &text);
    let file = file.to_str().unwrap().to_owned();
    place.run(&["vpn", "keys", &file, "-o", keys.to_str().unwrap()]).done();
    Some(file)
}

#[test]
fn json_of_links_matches_the_schemas() {
    let place = Place::new();
    let folder = |name: &str| place.path(name).to_str().unwrap().to_owned();
    let (run, state) = (folder("run"), folder("vpn"));
    let folders = ["--run", &run, "--state", &state];
    let vpn = |words: &[&str]| place.run(&[&["vpn"], words, &folders].concat());
    // A history and a status as a supervisor leaves them; this test holds the supervisor's lock.
    let history = place.path("vpn").join("branch/history/000001");
    fs::create_dir_all(&history).unwrap();
    fs::write(history.join("link.toml"), "name = \"branch\"\n").unwrap();
    assert_valid(&vpn(&["history", "branch", "--json"]).done().data, "vpn-history");
    let link = place.path("run").join("branch");
    fs::create_dir_all(&link).unwrap();
    let status = r#"{"name": "branch", "side": "a", "state": "degraded", "generation": 1, "at_ms": 0,
        "supervisor": SUPERVISOR, "routed": [0], "certificate_until": 5, "confirm_within_ms": null, "members": [
        {"number": 0, "state": "up", "reason": "", "pid": 1, "rtt_us": 5, "lost_percent": 0, "loses_long_packets": false,
         "received_bytes": 1, "sent_bytes": 1, "cpu_ms": 5, "restarts": 0}]}"#;
    let supervisor = std::process::id().to_string();
    fs::write(link.join("status.json"), status.replace("SUPERVISOR", &supervisor)).unwrap();
    let lock = link.join("supervisor.lock");
    fs::write(&lock, std::process::id().to_string()).unwrap();
    let lock = fs::File::open(lock).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_valid(&vpn(&["status", "branch", "--json"]).done().data, "vpn-status");
    let line = vpn(&["watch", "branch", "--json", "--count", "1"]);
    assert_valid(&line.done().data, "vpn-status");

    let commands = repository().join("crates/vpn/fixtures/ipsec/vyos-peer.txt");
    let commands = commands.to_str().unwrap();
    let imported =
        place.run(&["vpn", "import", commands, "--peer", "BRANCH", "--name", "branch", "--json"]);
    assert_valid(&imported.done().data, "vpn-import");
    let possible = rustix::process::geteuid().is_root() && Path::new("/dev/net/tun").exists();
    let Some(file) = link_of_this_machine(&place).filter(|_| possible) else {
        millrace_testkit::skip!("no network device for a VPN: it needs root and an address");
    };
    assert_valid(&vpn(&["plan", &file, "--json"]).done().data, "vpn-plan");
    let would = vpn(&["up", &file, "--dry-run"]);
    assert_eq!(would.done().data, vpn(&["plan", &file]).data);
}
