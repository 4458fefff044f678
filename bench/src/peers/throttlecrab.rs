//! throttlecrab: one limiter for all scopes, with the adaptive store of its quick start.
//!
//! Its calls need `&mut self`: a single thread owns it, several threads share it behind a mutex.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{AdaptiveStore, RateLimiter};

use crate::limiter::Limiter;
use crate::scope::{Mode, Quota, SCOPES, Scope};
use crate::traffic::{USERS, User};

pub(crate) struct Throttlecrab {
    limiter: Mutex<RateLimiter<AdaptiveStore>>,
    scopes: Vec<(Scope, Quota)>,
}

impl Throttlecrab {
    pub(crate) fn new(scopes: usize, mode: Mode) -> Self {
        let chosen = SCOPES.into_iter().take(scopes);
        Self {
            limiter: Mutex::new(RateLimiter::new(AdaptiveStore::with_capacity(2 * USERS))),
            scopes: chosen.map(|scope| (scope, scope.quota(mode))).collect(),
        }
    }

    fn allows(&self, limiter: &mut RateLimiter<AdaptiveStore>, user: &User) -> bool {
        let now = SystemTime::now();
        self.scopes.iter().all(|&(scope, quota)| {
            let (amount, seconds) = (i64::from(quota.amount()), i64::from(quota.seconds()));
            let answer = limiter.rate_limit(
                &scope.key(user.user, user.model, user.tenant),
                amount,
                amount,
                seconds,
                1,
                now,
            );
            answer.expect("the limits of the scopes are valid").0
        })
    }
}

impl Limiter for Throttlecrab {
    fn asker(&self, threads: usize) -> impl FnMut(&User) -> bool {
        let lock = || self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let mut alone = (threads == 1).then(lock);
        move |user| match &mut alone {
            Some(limiter) => self.allows(limiter, user),
            None => self.allows(&mut lock(), user),
        }
    }
}
