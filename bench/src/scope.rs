//! The scopes of a scenario, with their keys and limits.

/// The dimensions that a limit counts by. A scenario with n scopes has the first n.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A counter per user and model: as many as users, since each user has one model.
    UserModel,
    /// A hundred counters.
    Tenant,
    /// Ten counters.
    Model,
    /// A counter per user.
    User,
    /// One counter.
    Global,
}

pub(crate) const SCOPES: [Scope; 5] =
    [Scope::UserModel, Scope::Tenant, Scope::Model, Scope::User, Scope::Global];

/// Limit of a user that denies: its first few requests use it up.
const HOURLY: u32 = 5;

impl Scope {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::UserModel => "USER_MODEL",
            Self::Tenant => "TENANT",
            Self::Model => "MODEL",
            Self::User => "USER",
            Self::Global => "GLOBAL",
        }
    }

    /// Dimensions with a separate counter for each value.
    pub(crate) const fn per(self) -> &'static [&'static str] {
        match self {
            Self::UserModel => &["userId", "modelId"],
            Self::Tenant => &["tenantId"],
            Self::Model => &["modelId"],
            Self::User => &["userId"],
            Self::Global => &[],
        }
    }

    /// Builds the key as a text, for limiters without dimensions.
    pub(crate) fn key(self, user: &str, model: &str, tenant: &str) -> String {
        match self {
            Self::UserModel => format!("{user}:{model}"),
            Self::Tenant => format!("tenant:{tenant}"),
            Self::Model => format!("model:{model}"),
            Self::User => format!("user:{user}"),
            Self::Global => "global".to_owned(),
        }
    }

    /// Returns the limit of the scope.
    pub(crate) const fn quota(self, mode: Mode) -> Quota {
        match (self, mode) {
            // Only the first scope denies: the best case for limiters that check one scope after
            // the other and stop at the first denial.
            (Self::UserModel, Mode::Deny) => Quota::Hourly(HOURLY),
            (Self::UserModel | Self::User, _) => Quota::PerSecond(100_000),
            (Self::Tenant | Self::Model | Self::Global, _) => Quota::PerSecond(10_000_000),
        }
    }
}

/// Decision for nearly every request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Admit,
    Deny,
}

impl Mode {
    /// Number of requests per user after which every further request gets the same decision.
    pub(crate) const fn requests_to_settle(self) -> usize {
        match self {
            Self::Admit => 1,
            Self::Deny => HOURLY as usize,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Admit => "admitted",
            Self::Deny => "denied",
        }
    }
}

/// An amount per time unit, which every limiter can express.
#[derive(Clone, Copy)]
pub(crate) enum Quota {
    /// Requests per second, more than the benchmark sends.
    PerSecond(u32),
    /// Requests per hour, used up at once.
    Hourly(u32),
}

impl Quota {
    pub(crate) const fn amount(self) -> u32 {
        match self {
            Self::PerSecond(amount) | Self::Hourly(amount) => amount,
        }
    }

    pub(crate) const fn seconds(self) -> u32 {
        match self {
            Self::PerSecond(_) => 1,
            Self::Hourly(_) => 3_600,
        }
    }

    /// Formats the quota as an exact limit of ours.
    ///
    /// The window is a tenth of a second with a tenth of the amount. So entries expire while a
    /// round is measured, and the time to remove them is included.
    pub(crate) fn exact(self) -> String {
        match self {
            Self::PerSecond(amount) => format!("{}/100ms", amount / 10),
            Self::Hourly(amount) => format!("{amount}/h"),
        }
    }

    /// Formats the quota as a token bucket of ours, as governor and throttlecrab use.
    ///
    /// The bucket is large and slowly refilled, so that it is never full again: our store drops a
    /// full bucket, and would create it again for every request.
    pub(crate) fn bucket(self) -> String {
        match self {
            Self::PerSecond(amount) => {
                format!("{}/s burst {}", amount / 1_000, u64::from(amount) * 100)
            }
            Self::Hourly(amount) => format!("{amount}/h burst {amount}"),
        }
    }
}
