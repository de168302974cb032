// Copyright The Millrace Authors
// SPDX-License-Identifier: Apache-2.0 OR MIT

use std::sync::LazyLock;

use millrace_operation::{KeyType, OperationKind};
use proptest::prelude::*;

use super::*;
use crate::grant::GrantSigner;
use crate::quota::Quota;
use crate::rates::{Rate, Rates};
use crate::settings::Settings;
use crate::tenants::Priority;

static SIGNER: LazyLock<GrantSigner> = LazyLock::new(|| GrantSigner::generate().unwrap().0);

/// Lifetime of the grants here.
const TTL: Duration = Duration::from_secs(30);

/// Time that the test moves: since the start of the process, and the difference of the wall clock.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
    at: Duration,
    skew_ms: i64,
}

impl Clock {
    fn new() -> Self {
        Self { start: Instant::now(), at: Duration::ZERO, skew_ms: 0 }
    }

    fn now(self) -> Instant {
        self.start + self.at
    }

    /// Milliseconds since 1970 by the manager's clock.
    fn true_ms(self) -> u64 {
        1_800_000_000_000 + u64::try_from(self.at.as_millis()).unwrap()
    }

    fn wall(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.true_ms().checked_add_signed(self.skew_ms).unwrap())
    }

    fn after(self, time: Duration) -> Self {
        Self { at: self.at + time, ..self }
    }

    fn answer(self, fence: u64) -> GrantAnswer {
        GrantAnswer { fence, sent: self.now(), now: self.now(), wall: self.wall() }
    }
}

fn grant(tenant: &str, revision: u64, fence: u64, ops: u64, from_ms: u64) -> Grant {
    Grant {
        id: [1; 16],
        revision,
        not_before_ms: from_ms,
        expires_ms: from_ms + u64::try_from(TTL.as_millis()).unwrap(),
        tenant: tenant.to_owned(),
        weight: 1,
        priority: Priority::Normal,
        node: "node-1".to_owned(),
        fence,
        rates: Rates { ops: Rate::per_second(ops), ..Rates::default() },
        identities: [format!("cert:{tenant}-*").parse().unwrap()].into(),
        endpoints: BTreeSet::new(),
    }
}

fn signed(tenant: &str, revision: u64, fence: u64, ops: u64, clock: Clock) -> SignedGrant {
    let grant = grant(tenant, revision, fence, ops, clock.true_ms());
    SIGNER.sign(grant).unwrap()
}

fn book(on_expiry: OnExpiry) -> GrantBook {
    GrantBook::new("node-1", GrantKeys::new([SIGNER.key()]).unwrap(), on_expiry)
}

/// Operations per second of an identity; `None` if it is refused, 0 for no limit.
fn ops(book: &GrantBook, identity: &str) -> Option<u64> {
    let terms = Settings::default().terms(identity, &book.directory());
    terms.map(|terms| terms.rates.ops.per_second)
}

#[test]
fn managed_node_serves_identities_of_tenants_with_a_grant_alone() {
    let mut book = book(OnExpiry::SafeShare);
    let clock = Clock::new();
    assert_eq!(ops(&book, "cert:acme-1"), None);
    book.apply(&[signed("acme", 1, 7, 400, clock)], clock.answer(7)).unwrap();
    assert_eq!(ops(&book, "cert:acme-1"), Some(400));
    assert_eq!(ops(&book, "cert:other-1"), None);
    book.apply(&[signed("other", 2, 7, 0, clock)], clock.answer(7)).unwrap();
    assert_eq!((ops(&book, "cert:acme-1"), ops(&book, "cert:other-1")), (None, Some(0)));
}

#[test]
fn expired_grant_leaves_its_safe_share_or_nothing() {
    for (on_expiry, left) in [(OnExpiry::SafeShare, Some(100)), (OnExpiry::Refuse, None)] {
        let mut book = book(on_expiry);
        let clock = Clock::new();
        book.apply(&[signed("acme", 1, 7, 400, clock)], clock.answer(7)).unwrap();
        assert_eq!(book.next_expiry(), Some(clock.now() + TTL));
        let almost = clock.after(TTL - Duration::from_millis(1));
        book.expire(almost.now(), almost.wall());
        assert_eq!(ops(&book, "cert:acme-1"), Some(400));
        let over = clock.after(TTL);
        book.expire(over.now(), over.wall());
        assert_eq!(ops(&book, "cert:acme-1"), left);
        assert_eq!(book.next_expiry(), None);
        // The manager is back.
        book.apply(&[signed("acme", 2, 7, 300, over)], over.answer(7)).unwrap();
        assert_eq!(ops(&book, "cert:acme-1"), Some(300));
    }
}

#[test]
fn clock_that_is_set_back_extends_no_grant_and_one_set_forward_ends_it() {
    let clock = Clock::new();
    for (skew_ms, expired) in [(-3_600_000, false), (29_000, false), (30_000, true)] {
        let mut book = book(OnExpiry::Refuse);
        book.apply(&[signed("acme", 1, 7, 400, clock)], clock.answer(7)).unwrap();
        let jumped = Clock { skew_ms, ..clock };
        book.expire(jumped.now(), jumped.wall());
        assert_eq!(ops(&book, "cert:acme-1").is_none(), expired, "{skew_ms}");
        let late = jumped.after(TTL);
        book.expire(late.now(), late.wall());
        assert_eq!(ops(&book, "cert:acme-1"), None, "{skew_ms}");
    }
}

#[test]
fn grant_whose_answer_was_under_way_for_long_ends_with_the_request() {
    let mut book = book(OnExpiry::Refuse);
    let clock = Clock::new();
    let late = clock.after(Duration::from_secs(20));
    // The manager's clock is ahead, so that by the wall clock the grant would live longer.
    let ahead = signed("acme", 1, 7, 400, clock.after(Duration::from_secs(20)));
    let answer = GrantAnswer { sent: clock.now(), ..late.answer(7) };
    book.apply(std::slice::from_ref(&ahead), answer).unwrap();
    assert_eq!(book.next_expiry(), Some(clock.now() + TTL));
    let too_late = clock.after(TTL);
    let answer = GrantAnswer { sent: clock.now(), ..too_late.answer(7) };
    assert!(matches!(book.apply(&[ahead], answer), Err(GrantError::Expired(_))));
}

#[test]
fn grant_that_is_not_for_this_node_now_changes_nothing() {
    let clock = Clock::new().after(Duration::from_secs(100));
    let good = || signed("acme", 5, 7, 400, clock);
    let altered = |change: &dyn Fn(&mut Grant)| {
        let mut grant = grant("acme", 6, 7, 999, clock.true_ms());
        change(&mut grant);
        SIGNER.sign(grant).unwrap()
    };
    let (stranger, _) = GrantSigner::generate().unwrap();
    let foreign = stranger.sign(grant("acme", 6, 7, 999, clock.true_ms())).unwrap();
    let wrong = [
        (foreign, "does not trust"),
        (altered(&|grant| grant.node = "node-2".to_owned()), "not for this one"),
        (altered(&|grant| grant.fence = 6), "registration 6"),
        (altered(&|grant| grant.fence = 8), "registration 8"),
        (altered(&|grant| grant.revision = 4), "out of date"),
        (
            altered(&|grant| {
                grant.not_before_ms += 1_001;
                grant.expires_ms += 1_001;
            }),
            "check the clocks",
        ),
        (
            altered(&|grant| {
                grant.not_before_ms -= 30_000;
                grant.expires_ms -= 30_000;
            }),
            "expired",
        ),
    ];
    for (grant, reason) in wrong {
        let mut book = book(OnExpiry::SafeShare);
        book.apply(&[good()], clock.answer(7)).unwrap();
        let other = signed("other", 6, 7, 1, clock);
        let error = book.apply(&[other, grant], clock.answer(7)).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(ops(&book, "cert:acme-1"), Some(400), "{reason}");
        assert_eq!(ops(&book, "cert:other-1"), None, "all or none");
    }
}

#[test]
fn answer_for_an_earlier_registration_is_refused() {
    let mut book = book(OnExpiry::SafeShare);
    let clock = Clock::new();
    let old = signed("acme", 9, 7, 400, clock);
    book.apply(std::slice::from_ref(&old), clock.answer(7)).unwrap();
    // Revisions of another registration begin again.
    book.apply(&[signed("acme", 1, 8, 100, clock)], clock.answer(8)).unwrap();
    assert_eq!(ops(&book, "cert:acme-1"), Some(100));
    let error = book.apply(&[old], clock.answer(7)).unwrap_err();
    assert_eq!(error, GrantError::OtherFence { granted: 7, own: 8 });
    assert_eq!(ops(&book, "cert:acme-1"), Some(100));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The manager answers with a slice of this size, after a delay.
    Renew { ops: u64, delay_ms: u64 },
    /// An old answer arrives again.
    Replay(usize),
    /// The wall clock of the node jumps.
    Jump(i64),
    /// Time passes, in which the tenant asks for as much as it can.
    Use { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1..500_u64, 0..40_000_u64).prop_map(|(ops, delay_ms)| Step::Renew { ops, delay_ms }),
        1 => any::<usize>().prop_map(Step::Replay),
        1 => (-100_000..100_000_i64).prop_map(Step::Jump),
        4 => (1..20_000_u64).prop_map(|ms| Step::Use { ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Whatever the order of renewals, replays, clock jumps and outages: what a tenant gets stays below the slices
    /// that were in force by the manager's own clock (until `TTL` after each was signed, then the safe share), one
    /// burst, and the allowance for clocks.
    #[test]
    fn served_jobs_stay_within_the_slices_whatever_clocks_and_answers_do(
        steps in prop::collection::vec(step(), 1..30),
    ) {
        let mut book = book(OnExpiry::SafeShare);
        let mut clock = Clock::new();
        let quota = Quota::new(Rates { ops: Rate { per_second: 1, burst: 1 }, ..Rates::default() }, clock.now());
        let mut answers = Vec::new();
        let mut revision = 0;
        let (mut served, mut allowed, mut burst) = (0_u64, 0.0, 1_u64);
        // The largest slice that the manager must count as in force, with its end by the true clock.
        let mut slices: Vec<(u64, Duration)> = Vec::new();
        for step in steps {
            match step {
                Step::Renew { ops, delay_ms } => {
                    revision += 1;
                    let answer = (signed("acme", revision, 7, ops, clock), clock.now());
                    slices.push((ops, clock.at + TTL));
                    burst = burst.max(ops);
                    clock.at += Duration::from_millis(delay_ms);
                    // In that time nothing was asked for, so nothing was used.
                    let (grant, sent) = &answer;
                    let _ = book.apply(std::slice::from_ref(grant), GrantAnswer { sent: *sent, ..clock.answer(7) });
                    answers.push(answer);
                }
                Step::Replay(index) => {
                    if let Some((grant, sent)) = answers.get(index % answers.len().max(1)) {
                        let _ = book.apply(std::slice::from_ref(grant), GrantAnswer { sent: *sent, ..clock.answer(7) });
                    }
                }
                Step::Jump(ms) => clock.skew_ms = ms,
                Step::Use { ms } => {
                    for _ in 0..ms.div_ceil(100) {
                        clock.at += Duration::from_millis(100);
                        book.expire(clock.now(), clock.wall());
                        let of = |(ops, until): &(u64, Duration)| {
                            if clock.at <= *until { *ops } else { (*ops / 4).max(1) }
                        };
                        let most = slices.iter().map(of).max().unwrap_or(0);
                        allowed += most as f64 * 0.1;
                        let Some(terms) = Settings::default().terms("cert:acme-1", &book.directory()) else { continue };
                        prop_assert!(terms.rates.ops.per_second <= most, "{:?} above {}", terms.rates.ops, most);
                        quota.set_rates(&terms.rates, clock.now());
                        while quota.take(OperationKind::Ed25519Sign, KeyType::Ed25519, 32, clock.now()).is_ok() {
                            served += 1;
                        }
                    }
                }
            }
        }
        let skew = burst as f64 * CLOCK_ALLOWANCE.as_secs_f64();
        // A bucket also fills while nothing is asked for: one burst at most.
        prop_assert!(served as f64 <= allowed + 2.0 * burst as f64 + skew, "{} of {}", served, allowed);
    }
}
