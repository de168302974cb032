// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Managed pools of real processes: one machine with everything inside, and managers on a real etcd with nodes and a
//! gateway, through the end of each part. Quotas are above what a gateway on this machine asks for, even a quarter of
//! them: a handshake that fails, fails for another reason. Recovery times are printed; `docs/guide/cluster.md` has
//! those of an idle machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use millrace_testkit::etcd::EtcdCluster;
use millrace_tests::artifacts::artifacts;
use millrace_tests::edge::EdgeOptions;
use millrace_tests::memory::Secret;
use millrace_tests::node::{Node, NodeOptions};
use millrace_tests::pki::{Identity, KeyKind};
use millrace_tests::pool::{GRANT_SECONDS, Loaded, Operator, Pool, in_force, tenant_at};
use millrace_tests::process::{self, Process, free_port, succeed};
use millrace_tests::release;
use millrace_tests::wait;
use millrace_tests::world::World;

/// The key of the gateway, which its tenant alone may use, and its stub.
fn import(nodes: &[&Node], identity: &Identity) -> String {
    let mut stub = String::new();
    for node in nodes {
        stub = node.import_with("www", identity, &["--allow-tenant", "acme"]);
    }
    stub
}

/// Keys that a node serves.
fn keys_of(node: &Node) -> u64 {
    node.status()["keys"].as_u64().unwrap_or(0)
}

/// The files below `folder` that have a secret.
fn leaks(folder: &Path, secret: &Secret) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap_or_default();
            if !secret.found_in(&bytes).is_empty() {
                found.push(path);
            }
        }
    }
    found
}

fn edge(nodes: &[&Node]) -> EdgeOptions {
    EdgeOptions {
        nodes: nodes.iter().map(|node| node.endpoint()).collect(),
        ..EdgeOptions::default()
    }
}

#[test]
fn up_with_a_manager_inside_serves_tenants_and_the_page() {
    let world = World::new();
    let port = free_port().to_string();
    let listen = format!("127.0.0.1:{port}");
    let grant = GRANT_SECONDS.to_string();
    let run = ["up", "--with-manager", "--manager-listen", &listen, "--grant-lifetime", &grant];
    let options = NodeOptions { run: run.map(str::to_owned).to_vec(), ..NodeOptions::default() };
    let mut node = Node::start_with(world.dir(), "node-1", &options);
    let operator = Operator::new(&node.dir().join("state/manager/access"));
    let identity = world.identity(KeyKind::P256);
    let stub = import(&[&node], &identity);
    operator.done(&["tenant", "create", "acme", "--ops", "9000", "--identity", "uid:*"]);
    operator.done(&["tenant", "place", "acme", "--over-commit", "on"]);
    let _ = operator.wait_for_slices("acme", &["node-1"], 9000);
    wait::until("the grant is in force", || in_force(&node, "acme") == 9000);
    let loaded = Loaded::start(&world, edge(&[&node]), &identity, &stub);
    loaded.load.wait_for_more(5);
    let _ = operator.wait(&["pool", "status"], |state| {
        state["tenants"][0]["used_ops"].as_f64().is_some_and(|used| used > 0.0)
    });
    operator.done(&["tenant", "set", "acme", "--ops", "8000"]);
    wait::until("the quota is in force", || in_force(&node, "acme") == 8000);

    // The page is that of the pool, and loads nothing from elsewhere.
    let page = succeed(
        release::command("curl")
            .args(["--silent", "--show-error", "--include", "--cacert"])
            .arg(node.dir().join("state/tls/ca.crt"))
            .arg(format!("https://{listen}/")),
    );
    assert!(page.contains("default-src 'none'"), "{page}");
    // A refusal that may leave the body of its request unread says that the connection ends.
    let refused = process::run(
        release::command("curl")
            .args(["--silent", "--include", "--data", "{}", "--cacert"])
            .arg(node.dir().join("state/tls/ca.crt"))
            .arg(format!("https://{listen}/v1/nodes/n1/heartbeat")),
    );
    let refused = process::text_of(&refused).to_lowercase();
    assert!(refused.contains(" 401 ") && refused.contains("connection: close"), "{refused}");

    // Everything is in the state folder: a killed process continues where it was.
    node.kill();
    node.up();
    let _ = operator.wait(&["pool", "status"], |state| {
        state["verdict"]["level"] == "good" && state["tenants"][0]["name"] == "acme"
    });
    wait::until("the grant is in force", || in_force(&node, "acme") == 8000);
    loaded.load.wait_for_more(5);
    loaded.none_failed();
    node.stop();
}

#[test]
fn pool_survives_the_end_of_a_manager_of_etcd_and_of_a_node() {
    let world = World::new();
    let mut etcd = EtcdCluster::start(world.dir(), 1);
    let store = format!("etcd://{}", etcd.endpoints().join(","));
    let mut pool = Pool::start(world.dir(), &store, 2);
    let (mut a, b, c) = (pool.node("a"), pool.node("b"), pool.node("c"));
    let identity = world.identity(KeyKind::P256);
    let stub = import(&[&a, &b, &c], &identity);
    let operator = pool.operator().clone();
    operator.done(&["tenant", "create", "acme", "--ops", "18000", "--identity", "uid:*"]);
    operator.done(&["tenant", "place", "acme", "--over-commit", "on"]);
    let _ = operator.wait_for_slices("acme", &["a", "b"], 18000);
    let loaded = Loaded::start(&world, edge(&[&a, &b, &c]), &identity, &stub);
    loaded.load.wait_for_more(20);
    assert_eq!(c.served().total(), 0, "c has no grant");

    // A manager ends: the other one renews the grants and takes changes.
    let start = Instant::now();
    pool.managers[0].kill();
    operator.done(&["tenant", "set", "acme", "--ops", "16000"]);
    let sum = |nodes: [&Node; 2]| -> u64 { nodes.map(|node| in_force(node, "acme")).iter().sum() };
    wait::until("the other manager's quota is in force", || sum([&a, &b]) == 16000);
    println!("kill -9 of a manager: a new quota in force after {:?}", start.elapsed());
    pool.managers[0].up();
    loaded.load.wait_for_more(5);

    // All of etcd ends: jobs go on, with a part of each slice once the grants have expired.
    etcd.kill(0);
    let expired = |node: &Node| node.status()["grants"][0]["expired"] == true;
    wait::until("the grants have expired", || expired(&a) && expired(&b));
    assert!(!operator.run(&["tenant", "set", "acme", "--ops", "9"]).status.success());
    loaded.load.wait_for_more(5);
    let start = Instant::now();
    etcd.start_member(0);
    wait::until("the grants are renewed", || !expired(&a) && !expired(&b));
    println!("kill -9 of all etcd: grants renewed {:?} after its start", start.elapsed());
    let _ = operator.wait_for_slices("acme", &["a", "b"], 16000);

    // A node ends: its tenant moves, but for the quarter that it might still serve elsewhere.
    let start = Instant::now();
    a.kill();
    let _ = operator.wait_for_slices("acme", &["b", "c"], 14000);
    wait::until("the slices are in force", || sum([&b, &c]) == 14000);
    println!("kill -9 of a node: its slices at another after {:?}", start.elapsed());
    let start = Instant::now();
    a.up();
    let whole = operator.wait(&["tenant", "addresses", "acme"], |grants| {
        let rows = grants["nodes"].as_array().cloned().unwrap_or_default();
        let ops = rows.iter().filter_map(|row| row["slice"]["ops"]["per-second"].as_u64());
        ops.sum::<u64>() == 16000
    });
    println!("the node is back: the whole quota after {whole:?} ({:?})", start.elapsed());
    loaded.load.wait_for_more(5);
    loaded.none_failed();
    assert!(operator.run(&["audit", "--verify"]).status.success());
}

#[test]
fn each_manager_shows_the_same_use_of_a_node_that_reports_to_one() {
    let world = World::new();
    let etcd = EtcdCluster::start(world.dir(), 1);
    let store = format!("etcd://{}", etcd.endpoints().join(","));
    let pool = Pool::start(world.dir(), &store, 2);
    let a = pool.node("a");
    let identity = world.identity(KeyKind::P256);
    let stub = import(&[&a], &identity);
    let operator = pool.operator().clone();
    tenant_at(&operator, "a");
    wait::until("the grant is in force", || in_force(&a, "acme") == 9000);
    let loaded = Loaded::start(&world, edge(&[&a]), &identity, &stub);
    loaded.load.wait_for_more(20);
    let uses = || {
        let shown = pool.managers.iter().map(|manager| {
            let state = operator.asking(&manager.url()).json(&["pool", "status"]);
            let [tenant, node] = [&state["tenants"][0], &state["nodes"][0]];
            let numbers = [&tenant["used_ops"], &node["ops_per_s"], &state["figures"]["ops_per_s"]];
            numbers.map(|number| number.as_f64().unwrap_or(0.0).to_string())
        });
        shown.collect::<Vec<_>>()
    };
    let same = |rows: &[[String; 3]]| rows[0] == rows[1] && rows[0].iter().all(|row| row != "0");
    wait::until("both show the same use", || same(&uses()));
    let metric = |text: &String| {
        let prefix = "millrace_pool_tenant_operations_per_second{tenant=\"acme\"} ";
        text.lines().find_map(|line| line.strip_prefix(prefix)).unwrap_or("0").to_owned()
    };
    wait::until("both have the same metrics", || {
        let rows: Vec<String> = pool.metrics().iter().map(metric).collect();
        rows[0] == rows[1] && rows[0] != "0"
    });
    loaded.none_failed();
}

#[test]
fn gateway_follows_its_tenant_to_another_node_without_a_reload() {
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let mut pool = Pool::start(world.dir(), &store, 1);
    let (a, b) = (pool.node("a"), pool.node("b"));
    let identity = world.identity(KeyKind::P256);
    let stub = import(&[&a, &b], &identity);
    let operator = pool.operator().clone();
    tenant_at(&operator, "a");
    wait::until("the grant is in force", || in_force(&a, "acme") == 9000);

    let file = world.dir().join("pool.toml");
    let path = file.to_str().expect("a path in UTF-8");
    let command = operator.command(&["tenant", "addresses", "acme", "--watch", path]);
    let mut agent = Process::start("agent", command, &world.dir().join("agent.log"));
    agent.wait_ready(|| file.exists());
    let edge = EdgeOptions::default().with("millrace_config", path);
    let loaded = Loaded::start(&world, edge, &identity, &stub);
    loaded.load.wait_for_more(10);
    assert_eq!(b.served().total(), 0, "b has no grant, and no list names it");

    let start = Instant::now();
    operator.done(&["tenant", "place", "acme", "--node", "b"]);
    wait::until("the gateway uses the other node", || b.served().total() > 10);
    println!("a gateway follows its tenant within {:?}", start.elapsed());
    // The former node has no connection of the gateway any more.
    wait::until("the former node is left", || a.connections() == 0);

    // Without a manager the list stays as it is.
    pool.managers[0].kill();
    loaded.load.wait_for_more(20);
    wait::until("the agent has noticed", || agent.log().contains("stays as it is"));
    loaded.load.wait_for_more(5);
    loaded.none_failed();
}

#[test]
fn key_of_the_pool_follows_its_tenant_and_no_file_of_a_manager_has_it() {
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let mut pool = Pool::start(world.dir(), &store, 1);
    let (mut a, b) = (pool.node("a"), pool.node("b"));
    let identity = world.identity(KeyKind::P256);
    let operator = pool.operator().clone();
    tenant_at(&operator, "a");
    let file = identity.key_file.to_str().expect("a path in UTF-8");
    operator.done(&["pool", "key", "import", "www", file, "--tenant", "acme"]);
    let stub = process::text_of(&operator.run(&["pool", "key", "stub", "www"]));
    wait::until("the node has the key", || keys_of(&a) == 1);
    assert_eq!(keys_of(&b), 0, "the tenant is not on b");

    let list = world.dir().join("pool.toml");
    let path = list.to_str().expect("a path in UTF-8");
    let command = operator.command(&["tenant", "addresses", "acme", "--watch", path]);
    let mut agent = Process::start("agent", command, &world.dir().join("agent.log"));
    agent.wait_ready(|| list.exists());
    let edge = EdgeOptions::default().with("millrace_config", path);
    let loaded = Loaded::start(&world, edge, &identity, &stub);
    loaded.load.wait_for_more(10);

    // The tenant moves: its key is there first, and leaves last.
    let start = Instant::now();
    operator.done(&["tenant", "place", "acme", "--node", "b"]);
    wait::until("the gateway uses the other node", || b.served().total() > 10);
    println!("a gateway uses the key at another node within {:?}", start.elapsed());
    wait::until("the former node has deleted the key", || keys_of(&a) == 0);
    println!("the former node has deleted it after {:?}", start.elapsed());
    let kept = std::fs::read_dir(a.dir().join("state/keys")).expect("the store");
    let kept: Vec<_> = kept.flatten().map(|entry| entry.file_name()).collect();
    assert!(kept.iter().all(|name| name == "audit.jsonl"), "{kept:?}");
    loaded.load.wait_for_more(10);

    // A node that was killed, and gets the tenant back, starts without the key of its former life.
    a.kill();
    a.up();
    operator.done(&["tenant", "place", "acme", "--node", "a"]);
    wait::until("the key is back", || keys_of(&a) == 1 && keys_of(&b) == 0);
    loaded.load.wait_for_more(10);
    loaded.none_failed();

    // A removed node deletes it, too.
    operator.done(&["node", "remove", "a"]);
    wait::until("the removed node has deleted the key", || keys_of(&a) == 0);
    let listed = operator.json(&["pool", "key", "list"]);
    assert_eq!(listed[0]["tenants"][0], "acme", "{listed}");

    let manager = &mut pool.managers[0];
    manager.stop();
    let secret = Secret::of(&identity);
    let given = identity.key_file.parent().expect("a folder");
    assert!(!leaks(given, &secret).is_empty(), "the search finds it");
    assert_eq!(leaks(&manager.state(), &secret), Vec::<PathBuf>::new());
    for name in ["pool.db", "pool.db-wal", "agent.log"] {
        let bytes = std::fs::read(world.dir().join(name)).unwrap_or_default();
        assert_eq!(secret.found_in(&bytes), Vec::<String>::new(), "{name}");
    }
    for log in [manager.log(), a.log(), b.log()] {
        assert_eq!(secret.found_in(log.as_bytes()), Vec::<String>::new());
    }

    let kek = manager.state().join("manager/pool.kek");
    let aside = kek.with_extension("aside");
    std::fs::rename(&kek, &aside).expect("it is there");
    let text = manager.refuses_to_start();
    assert!(text.contains("pool.kek is missing") && text.contains("--new-kek"), "{text}");
    std::fs::rename(&aside, &kek).expect("it is back");
    manager.up();
}

#[test]
fn open_page_ends_with_the_right_to_see_it() {
    let world = World::new();
    let store = format!("sqlite:{}", world.dir().join("pool.db").display());
    let pool = Pool::start(world.dir(), &store, 1);
    let (manager, operator) = (&pool.managers[0], pool.operator());
    let mut cert = Command::new(&artifacts().millrace);
    cert.args(["cert", "client", "removed-cert", "--state"]).arg(manager.state());
    let _ = succeed(cert.arg("-o").arg(world.dir().join("removed-cert")));
    let with_identity = ["--identity", "cert:removed-cert"];
    let pages = [
        ("removed", &[][..]),
        ("removed-cert", &with_identity),
        ("expired", &["--lifetime", "4s"]),
        ("stays", &[]),
    ];
    let mut pages = pages.map(|(name, options)| {
        let create = [&["token", "create", name, "--role", "viewer"], options].concat();
        let made = operator.json(&create);
        let mut curl = release::command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--no-buffer", "--cacert"]);
        curl.arg(manager.state().join("tls/ca.crt"));
        match made["token"].as_str() {
            Some(token) => curl.args(["--header", &format!("authorization: Bearer {token}")]),
            None => {
                let files = world.dir().join(name);
                curl.arg("--cert").arg(files.join("cert.pem"));
                curl.arg("--key").arg(files.join("key.pem"))
            }
        };
        curl.arg(format!("{}/v1/events", manager.url()));
        let page = Process::start(name, curl, &world.dir().join(format!("{name}.page")));
        wait::until("the page is shown", || page.log().contains("event: state"));
        page
    });
    operator.done(&["token", "remove", "removed"]);
    operator.done(&["token", "remove", "removed-cert"]);
    for page in &mut pages[..3] {
        let _ = page.wait();
    }
    operator.done(&["tenant", "create", "later", "--ops", "1000"]);
    wait::until("the page goes on", || pages[3].log().contains("later"));
    assert!(pages[3].ended().is_none());
    assert!(pages[..3].iter().all(|page| !page.log().contains("later")));
}
