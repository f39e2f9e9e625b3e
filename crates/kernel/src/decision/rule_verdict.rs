//! The verdict of a rule.

use super::Verdict;

crate::named_enum! {
    /// The verdict of one rule for one descriptor, or of a proxy on a request.
    pub enum RuleVerdict {
        /// Allowed.
        Allow = "allow",
        /// Denied.
        Deny = "deny",
        /// Denied, but allowed by shadow mode.
        ShadowDeny = "shadow_deny",
        /// Allowed without a reply, by `on_store_failure` or by the failure rule of a proxy.
        FallbackAllow = "fallback_allow",
        /// Denied without a reply, by `on_store_failure` or by the failure rule of a proxy.
        FallbackDeny = "fallback_deny",
    }
}

impl RuleVerdict {
    /// Returns the verdict of a limit that the store did not decide.
    #[must_use]
    pub const fn fallback(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::FallbackAllow,
            Verdict::Deny => Self::FallbackDeny,
        }
    }

    /// Returns `true` if the request may pass.
    #[must_use]
    pub const fn is_allowed(self) -> bool {
        !matches!(self, Self::Deny | Self::FallbackDeny)
    }

    /// Returns the verdict on a request with these two parts: a denial wins, then a fallback.
    /// A denial in shadow mode is an allow.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Deny, _) | (_, Self::Deny) => Self::Deny,
            (Self::FallbackDeny, _) | (_, Self::FallbackDeny) => Self::FallbackDeny,
            (Self::FallbackAllow, _) | (_, Self::FallbackAllow) => Self::FallbackAllow,
            _ => Self::Allow,
        }
    }
}

impl From<Verdict> for RuleVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow => Self::Allow,
            Verdict::Deny => Self::Deny,
        }
    }
}
