// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::os::unix::fs::symlink;

use super::*;
use crate::recipe::Application;
use crate::settings::tests::settings;
use crate::verify::{Argument, Verification};

/// A plan whose only test is `test -e ROOT/etc/veto` negated: the file vetoes.
fn plan() -> Plan {
    let mut plan = Application::Nginx.plan(&settings(&["unix:/run/millrace/node.sock"]));
    plan.verifications = Vec::new();
    plan
}

fn refusing(mut plan: Plan) -> Plan {
    plan.verifications = vec![Verification {
        name: "sh",
        program: "sh",
        arguments: vec![
            Argument::Text("-c"),
            Argument::Text("if test -e \"$CNF\"; then echo no; exit 1; fi"),
        ],
        environment: Vec::new(),
        wants: None,
    }];
    plan
}

/// What the command does: the comparison that it shows is the one that it applies.
fn write(plan: &Plan, root: &Path, force: bool) -> Result<Written, WriteError> {
    compare(plan, root)?.apply(force)
}

fn states(changes: &[Change]) -> Vec<FileState> {
    changes.iter().map(|change| change.state).collect()
}

#[test]
fn second_write_changes_nothing() {
    let root = tempfile::tempdir().expect("folder");
    let plan = plan();
    let first = write(&plan, root.path(), false).expect("written");
    assert_eq!(states(&first.files), [FileState::New; 3]);
    for file in &plan.files {
        let path = below(root.path(), &file.path);
        assert_eq!(fs::read_to_string(&path).expect("a file"), file.contents);
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
    }
    let second = write(&plan, root.path(), false).expect("nothing to do");
    assert_eq!(states(&second.files), [FileState::Unchanged; 3]);
    assert!(second.verified.is_empty() && second.saved.is_empty());
}

#[test]
fn generated_files_that_differ_are_shown_and_replaced() {
    let root = tempfile::tempdir().expect("folder");
    let _ = write(&plan(), root.path(), false).expect("written");
    let other = {
        let mut settings = settings(&["unix:/run/millrace/node.sock"]);
        settings.plain_keys = true;
        let mut plan = Application::Nginx.plan(&settings);
        plan.verifications.clear();
        plan
    };
    let changes = compare(&other, root.path()).expect("compared").files;
    assert_eq!(
        states(&changes),
        [
            FileState::Changed,
            FileState::Unchanged,
            FileState::Unchanged
        ]
    );
    assert!(
        changes[0]
            .diff
            .contains(&"+ alg_section = algorithm_sect".to_owned())
    );
    let _ = write(&other, root.path(), false).expect("our own files are replaced without force");
    assert!(
        compare(&other, root.path())
            .expect("compared")
            .files
            .iter()
            .all(|c| c.diff.is_empty())
    );
    // Permissions count, too.
    let conf = below(root.path(), Path::new("/etc/nginx/millrace.conf"));
    fs::set_permissions(&conf, Permissions::from_mode(0o600)).expect("permissions");
    let changes = compare(&other, root.path()).expect("compared").files;
    assert_eq!(changes[2].diff, ["mode 0600 becomes 0644"]);
}

#[test]
fn foreign_files_are_replaced_only_by_force_and_copied() {
    let root = tempfile::tempdir().expect("folder");
    let plan = plan();
    let conf = below(root.path(), Path::new("/etc/nginx/millrace.conf"));
    fs::create_dir_all(conf.parent().expect("a folder")).expect("folders");
    fs::write(&conf, "env MINE;\n").expect("a file");
    let error = write(&plan, root.path(), false).expect_err("it is in the way");
    assert!(
        matches!(&error, WriteError::InTheWay(paths) if paths == std::slice::from_ref(&conf)),
        "{error}"
    );
    assert!(
        !root.path().join("etc/millrace").exists(),
        "nothing was written"
    );
    let written = write(&plan, root.path(), true).expect("forced");
    let copy = conf.with_extension("conf.millrace-save");
    assert_eq!(written.saved, std::slice::from_ref(&copy));
    assert_eq!(fs::read_to_string(&copy).expect("a copy"), "env MINE;\n");
    // Ours, but edited since; the first copy is not overwritten.
    let edited = format!("{}env MINE;\n", fs::read_to_string(&conf).expect("ours"));
    fs::write(&conf, &edited).expect("a file");
    assert!(matches!(
        write(&plan, root.path(), false),
        Err(WriteError::InTheWay(_))
    ));
    let written = write(&plan, root.path(), true).expect("forced");
    assert_eq!(written.saved, [conf.with_extension("conf.millrace-save.1")]);
    assert_eq!(fs::read_to_string(&copy).expect("a copy"), "env MINE;\n");
}

#[test]
fn all_files_are_restored_when_the_test_fails() {
    let root = tempfile::tempdir().expect("folder");
    let conf = below(root.path(), Path::new("/etc/nginx/millrace.conf"));
    fs::create_dir_all(conf.parent().expect("a folder")).expect("folders");
    fs::write(&conf, "env MINE;\n").expect("a file");
    let mut plan = refusing(plan());
    let cnf = below(root.path(), Path::new("/etc/millrace/openssl.cnf"));
    let cnf = cnf.to_str().expect("UTF-8").to_owned();
    plan.verifications[0].environment = vec![("CNF", Argument::Owned(cnf))];
    let error = write(&plan, root.path(), true).expect_err("vetoed");
    assert!(
        matches!(&error, WriteError::Verification { name: "sh", output } if output == "no"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&conf).expect("as it was"), "env MINE;\n");
    assert!(
        !root.path().join("etc/millrace").exists() && !root.path().join("etc/systemd").exists()
    );
    assert!(
        !conf.with_extension("conf.millrace-save").exists(),
        "no copy of what is still there"
    );
}

#[test]
fn test_that_failed_before_does_not_prevent_the_write() {
    let root = tempfile::tempdir().expect("folder");
    let mut plan = refusing(plan());
    plan.verifications[0].arguments[1] = Argument::Text("echo broken; exit 1");
    let written = write(&plan, root.path(), false).expect("written");
    let failed = Verdict::Failed("broken".to_owned());
    assert_eq!(
        (&written.verified[0].before, &written.verified[0].after),
        (&failed, &failed)
    );
}

#[test]
fn symbolic_link_at_a_planned_path_is_refused() {
    let root = tempfile::tempdir().expect("folder");
    let target = root.path().join("target");
    fs::write(&target, "mine\n").expect("a file");
    fs::create_dir_all(root.path().join("etc/nginx")).expect("folders");
    symlink(&target, root.path().join("etc/nginx/millrace.conf")).expect("a link");
    assert!(matches!(
        write(&plan(), root.path(), true),
        Err(WriteError::NotAFile(_))
    ));
    assert_eq!(fs::read_to_string(&target).expect("as it was"), "mine\n");
}

#[test]
fn snippets_are_missing_until_their_line_is_present() {
    let root = tempfile::tempdir().expect("folder");
    let plan = plan();
    assert_eq!(missing_snippets(&plan, root.path()).len(), 1);
    let conf = root.path().join("etc/nginx/nginx.conf");
    fs::create_dir_all(conf.parent().expect("a folder")).expect("folders");
    fs::write(&conf, "# include millrace.conf;\n").expect("a file");
    assert_eq!(
        missing_snippets(&plan, root.path()).len(),
        1,
        "a comment does not count"
    );
    fs::write(&conf, "include millrace.conf;\nevents {}\n").expect("a file");
    assert!(missing_snippets(&plan, root.path()).is_empty());
}

#[test]
fn file_changed_after_the_comparison_is_not_overwritten() {
    let root = tempfile::tempdir().expect("folder");
    let plan = plan();
    let conf = below(root.path(), Path::new("/etc/nginx/millrace.conf"));
    // The file is new at the first comparison and as planned at the second.
    for _ in 0..2 {
        let changes = compare(&plan, root.path()).expect("compared");
        fs::create_dir_all(conf.parent().expect("a folder")).expect("folders");
        fs::write(&conf, "env MINE;\n").expect("a file");
        let error = changes.apply(true).expect_err("changed since");
        assert!(
            matches!(&error, WriteError::ChangedSince(path) if *path == conf),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&conf).expect("a file"), "env MINE;\n");
        let _ = write(&plan, root.path(), true).expect("compared again");
    }
}
