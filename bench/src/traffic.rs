//! The same request sequence for every limiter.

use crate::scope::SCOPES;

/// Number of users; each has one model and one tenant.
pub(crate) const USERS: usize = 10_000;
const TENANTS: usize = 100;
const MODELS: [&str; 10] = [
    "gpt-4o",
    "gpt-4o-mini",
    "gpt-4.1",
    "o4-mini",
    "claude-sonnet-4",
    "claude-haiku-4",
    "gemini-2.5-pro",
    "gemini-2.5-flash",
    "llama-4-scout",
    "mistral-large",
];

/// A power of two, so that the compiler turns the modulo into a bit mask.
const ORDER: usize = 1 << 16;

/// The values of a request.
///
/// A service has just read them from its socket, so they should be in the processor cache: users
/// are small, and their texts are adjacent in memory.
pub(crate) struct User {
    pub(crate) user: &'static str,
    pub(crate) model: &'static str,
    pub(crate) tenant: &'static str,
    /// The keys of the scopes, built once, for limiters that take kept keys.
    pub(crate) keys: &'static [String; SCOPES.len()],
}

/// The users, and the order of their requests.
pub(crate) struct Traffic {
    pub(crate) users: Vec<User>,
    /// Indexes of users, chosen before the measurement so that it contains no random numbers.
    order: Vec<u32>,
}

impl Traffic {
    /// Creates the traffic. Call it once per process: its texts are never freed.
    pub(crate) fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(42);
        let user_names = texts(USERS, |number| format!("user-{number:06}"));
        let tenant_names = texts(TENANTS, |number| format!("tenant-{number:03}"));
        let users = user_names.into_iter().enumerate().map(|(number, user)| {
            let model = MODELS[number % MODELS.len()];
            let tenant = tenant_names[number / MODELS.len() % TENANTS];
            let keys = SCOPES.map(|scope| scope.key(user, model, tenant));
            User { user, model, tenant, keys: Box::leak(Box::new(keys)) }
        });
        Self {
            users: users.collect(),
            order: (0..ORDER).map(|_| random.u32(0..USERS as u32)).collect(),
        }
    }

    /// Returns the user of a request number.
    pub(crate) fn at(&self, number: usize) -> &User {
        &self.users[self.order[number % ORDER] as usize]
    }

    /// Returns the first request number of a thread. The threads start at equal distances, so that
    /// they do not send the same requests shortly after each other.
    pub(crate) fn start(&self, thread: usize, threads: usize) -> usize {
        ORDER / threads * thread
    }
}

/// Creates texts of equal length that are adjacent in memory.
fn texts(count: usize, text: impl Fn(usize) -> String) -> Vec<&'static str> {
    let all: &'static str = (0..count).map(&text).collect::<String>().leak();
    let length = all.len() / count;
    (0..count).map(|number| &all[number * length..][..length]).collect()
}
