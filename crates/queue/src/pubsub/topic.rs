//! [`Topic`]: a topic, the subscription that reads it, and the requests to both.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluicegate_core::time::{Clock as _, Span, Timestamp};
use tokio::sync::Notify;
use tonic::Code;

use super::NAME;
use super::api::Api;
use super::failure::Failure;
use super::proto::{self, ReceivedMessage, Subscription};
use crate::broker::QueueName;
use crate::{Error, WallClock};

/// Time for which a subscription that was found is assumed to exist. A topic without a subscription
/// accepts messages and drops them.
const FOUND_VALIDITY: Span = Span::from_secs(10);
/// Number of deliveries after which Pub/Sub itself moves a message to the dead-letter topic: the
/// maximum. It is set because Pub/Sub counts deliveries only then.
const DELIVERIES_MAX: i32 = 100;
/// Time until the server has stopped a poll whose timeout is over. Until then it may hand messages to it.
const CANCEL_WAIT: Duration = Duration::from_millis(100);
/// Name that Pub/Sub gives to the topic of a subscription whose topic was deleted.
const DELETED_TOPIC: &str = "_deleted-topic_";

/// The settings of subscriptions that we create and accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriptionSettings {
    /// Lease of a delivery.
    pub(super) visibility: Span,
    pub(super) ordering: bool,
    pub(super) exactly_once: bool,
}

impl SubscriptionSettings {
    /// The settings of delay topics. A message is leased again or moved within its lease; if that
    /// fails, another process gets it soon.
    pub(super) const OF_DELAYS: Self =
        Self { visibility: Span::from_secs(20), ordering: false, exactly_once: false };
}

#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: QueueName,
    topic: String,
    subscription: String,
    /// Beginning of the resource names of topics.
    topics: String,
    settings: SubscriptionSettings,
    api: Api,
    found: Mutex<Option<FoundSubscription>>,
    /// Wakes a task that waits for the subscription to exist.
    pub(super) appeared: Notify,
}

/// A subscription when it was last looked up.
#[derive(Clone, Copy, Debug)]
struct FoundSubscription {
    at: Timestamp,
    lease_seconds: i32,
    /// True if it has a dead-letter policy: only then Pub/Sub counts deliveries.
    counts_deliveries: bool,
}

impl Topic {
    pub(super) fn new(
        name: QueueName,
        (project, subscription_suffix): (&str, &str),
        settings: SubscriptionSettings,
        api: Api,
    ) -> Result<Self, Error> {
        let subscription = format!("{}{subscription_suffix}", name.name());
        check_name(name.name())?;
        check_name(&subscription)?;
        Ok(Self {
            topic: format!("projects/{project}/topics/{}", name.name()),
            subscription: format!("projects/{project}/subscriptions/{subscription}"),
            topics: format!("projects/{project}/topics/"),
            name,
            settings,
            api,
            found: Mutex::default(),
            appeared: Notify::new(),
        })
    }

    /// Checks that the subscription exists and reads this topic, unless it was found a moment ago.
    pub(super) async fn verify(&self) -> Result<(), Error> {
        let now = WallClock.now();
        match self.found() {
            Some(found) if now.since(found.at) < FOUND_VALIDITY => Ok(()),
            _ => self.look_up().await.map(drop),
        }
    }

    /// Checks the subscription, and that its dead-letter topic has a subscription.
    pub(super) async fn check(&self) -> Result<(), Error> {
        let Some(policy) = self.look_up().await?.dead_letter_policy else { return Ok(()) };
        let topic = policy.dead_letter_topic;
        let list = proto::ListTopicSubscriptionsRequest {
            topic: topic.clone(),
            page_size: 1,
            ..Default::default()
        };
        let subscribed = match self.api.list_topic_subscriptions(list).await {
            Ok(listed) => !listed.subscriptions.is_empty(),
            Err(failure) if failure.code() == Some(Code::NotFound) => false,
            Err(failure) => return Err(failure.of_queue(&self.name)),
        };
        if subscribed {
            return Ok(());
        }
        let detail = format!(
            "its dead-letter topic {topic} has no subscription, so dead letters would be lost: \
             create one with `gcloud pubsub subscriptions create NAME --topic={topic}`"
        );
        Err(self.unusable(detail))
    }

    /// Returns true if messages with an ordering key are delivered in order.
    pub(super) const fn is_ordered(&self) -> bool {
        self.settings.ordering
    }

    /// Refuses a subscription whose redeliveries Pub/Sub does not tell: a message that kills its consumer
    /// would be delivered for ever.
    pub(super) async fn check_counted(&self) -> Result<(), Error> {
        self.verify().await?;
        if self.found().is_none_or(|found| found.counts_deliveries) {
            return Ok(());
        }
        let subscription = self.subscription.rsplit('/').next().unwrap_or_default();
        Err(self.unusable(format!(
            "its subscription has no dead-letter policy, so Pub/Sub does not count deliveries, and a \
             message that kills its consumer would come back for ever: run `gcloud pubsub \
             subscriptions update {subscription} --dead-letter-topic=TOPIC \
             --max-delivery-attempts={DELIVERIES_MAX}`"
        )))
    }

    /// Creates the topic and its subscription. One that exists stays as it is.
    pub(super) async fn create(&self, dead: Option<&QueueName>) -> Result<(), Error> {
        let topic = proto::Topic { name: self.topic.clone() };
        self.created_or_there(self.api.create_topic(topic).await)?;
        let dead_letter_policy = dead.map(|dead| proto::DeadLetterPolicy {
            dead_letter_topic: format!("{}{}", self.topics, dead.name()),
            max_delivery_attempts: DELIVERIES_MAX,
        });
        let subscription = Subscription {
            name: self.subscription.clone(),
            topic: self.topic.clone(),
            ack_deadline_seconds: seconds(self.settings.visibility),
            // Never: a queue that nobody reads for a month must not be deleted.
            expiration_policy: Some(proto::ExpirationPolicy::default()),
            enable_message_ordering: self.settings.ordering,
            enable_exactly_once_delivery: self.settings.exactly_once,
            dead_letter_policy,
            ..Default::default()
        };
        self.created_or_there(self.api.create_subscription(subscription).await)
    }

    /// Deletes all messages that were published until now.
    pub(super) async fn purge(&self) -> Result<(), Error> {
        let micros = WallClock.now().since(Timestamp::ZERO).as_micros();
        let time = prost_types::Timestamp {
            seconds: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
            nanos: i32::try_from(micros % 1_000_000 * 1_000).unwrap_or_default(),
        };
        let subscription = self.subscription.clone();
        let target = Some(proto::seek_request::Target::Time(time));
        let seek = proto::SeekRequest { subscription, target };
        self.api.seek(seek).await.map(drop).map_err(|failure| failure.of_queue(&self.name))
    }

    /// Publishes messages together: all or none of them.
    pub(super) async fn publish(&self, messages: Vec<proto::PubsubMessage>) -> Result<(), Failure> {
        let topic = self.topic.clone();
        let publish = proto::PublishRequest { topic, messages };
        self.api.publish(publish).await.map(drop)
    }

    /// Waits for messages, at most this long or else as long as Google does, and leases them for the
    /// given time.
    pub(super) async fn pull(
        &self,
        max: usize,
        visibility: Span,
        wait: Option<Span>,
    ) -> Result<Vec<ReceivedMessage>, Error> {
        let subscription = self.subscription.clone();
        let max_messages = i32::try_from(max).unwrap_or(i32::MAX);
        let pull = proto::PullRequest { subscription, max_messages };
        let received = match self.api.pull(pull, wait.map(Into::into)).await {
            Ok(pulled) => pulled.received_messages,
            Err(failure) if failure.code() == Some(Code::DeadlineExceeded) => Vec::new(),
            // The timeout of the client library, which the server notices a moment later.
            Err(failure) if wait.is_some() && failure.code() == Some(Code::Cancelled) => {
                tokio::time::sleep(CANCEL_WAIT).await;
                Vec::new()
            }
            Err(failure) => return Err(failure.of_queue(&self.name)),
        };
        let lease_seconds = seconds(visibility);
        if !received.is_empty()
            && self.found().is_none_or(|found| found.lease_seconds != lease_seconds)
        {
            let ack_ids = received.iter().map(|message| message.ack_id.clone()).collect();
            // If this fails, the lease of the subscription applies.
            let _ = self.lease(ack_ids, lease_seconds).await;
        }
        Ok(received)
    }

    /// Acknowledges deliveries.
    pub(super) async fn acknowledge(&self, ack_ids: Vec<String>) -> Result<(), Failure> {
        let subscription = self.subscription.clone();
        let acknowledge = proto::AcknowledgeRequest { subscription, ack_ids };
        self.api.acknowledge(acknowledge).await
    }

    /// Changes the leases of deliveries to this time from now; zero ends them.
    pub(super) async fn lease(
        &self,
        ack_ids: Vec<String>,
        ack_deadline_seconds: i32,
    ) -> Result<(), Failure> {
        let subscription = self.subscription.clone();
        let modify =
            proto::ModifyAckDeadlineRequest { subscription, ack_ids, ack_deadline_seconds };
        self.api.modify_ack_deadline(modify).await
    }

    /// Looks up the subscription and checks that it can be used.
    async fn look_up(&self) -> Result<Subscription, Error> {
        let get = proto::GetSubscriptionRequest { subscription: self.subscription.clone() };
        let found = self.api.get_subscription(get).await;
        let found = found.map_err(|failure| failure.of_queue(&self.name)).and_then(|found| {
            self.refuse_other(&found)?;
            Ok(found)
        });
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = match &found {
            Ok(found) => {
                self.appeared.notify_one();
                Some(FoundSubscription {
                    at: WallClock.now(),
                    lease_seconds: found.ack_deadline_seconds,
                    counts_deliveries: found.dead_letter_policy.is_some(),
                })
            }
            Err(_) => None,
        };
        found
    }

    /// Refuses a subscription that would lose messages or is not what the configuration says.
    fn refuse_other(&self, found: &Subscription) -> Result<(), Error> {
        let detail = if found.topic == DELETED_TOPIC {
            "its topic was deleted: delete the subscription, too, and create both again".to_owned()
        } else if found.topic != self.topic {
            let (topic, own) = (&found.topic, &self.topic);
            format!("its subscription reads {topic} and not {own}: set queue.subscription_suffix")
        } else if found.detached {
            "its subscription is detached from its topic: delete and create it again".to_owned()
        } else if found.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty()) {
            "its subscription pushes messages: create a pull subscription".to_owned()
        } else if !found.filter.is_empty() {
            "its subscription has a filter, which drops messages: create one without".to_owned()
        } else if self.settings.ordering && !found.enable_message_ordering {
            "queue.ordering is true, and its subscription has no message ordering: create it again \
             with --enable-message-ordering"
                .to_owned()
        } else if self.settings.exactly_once && !found.enable_exactly_once_delivery {
            "queue.exactly_once is true, and its subscription does not deliver exactly once: update \
             it with --enable-exactly-once-delivery"
                .to_owned()
        } else {
            return Ok(());
        };
        Err(self.unusable(detail))
    }

    fn unusable(&self, detail: String) -> Error {
        Error::Unusable { queue: self.name.name().to_owned(), detail }
    }

    fn created_or_there<T>(&self, created: Result<T, Failure>) -> Result<(), Error> {
        match created {
            Err(failure) if failure.code() != Some(Code::AlreadyExists) => {
                Err(failure.of_queue(&self.name))
            }
            _ => Ok(()),
        }
    }

    fn found(&self) -> Option<FoundSubscription> {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts to whole seconds, rounded up so that a lease is never too short.
pub(super) fn seconds(visibility: Span) -> i32 {
    i32::try_from(visibility.min(super::LEASE_MAX).as_secs_ceil()).unwrap_or(i32::MAX)
}

/// Checks the name of a topic or a subscription.
fn check_name(name: &str) -> Result<(), Error> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.~+%".contains(c);
    let valid = (3..=255).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !name.starts_with("goog")
        && name.chars().all(allowed);
    if valid {
        return Ok(());
    }
    let rule =
        "write 3 to 255 letters, digits and - _ . ~ + %, beginning with a letter and not with goog";
    Err(Error::Invalid(format!("{name:?} is not a valid {NAME} name: {rule}")))
}
