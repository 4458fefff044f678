//! [`Api`]: the requests to Pub/Sub, each with an access token and a timeout.

use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::failure::Failure;
use super::login::Login;
use super::proto::publisher_client::PublisherClient;
use super::proto::subscriber_client::SubscriberClient;
use super::proto::{
    AcknowledgeRequest, GetSubscriptionRequest, ListTopicSubscriptionsRequest,
    ListTopicSubscriptionsResponse, ModifyAckDeadlineRequest, PublishRequest, PublishResponse,
    PullRequest, PullResponse, SeekRequest, SeekResponse, Subscription, Topic,
};

/// Timeout of a request. Polls take longer: Google answers an empty one after a minute and a half.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
const POLL_TIMEOUT: Duration = Duration::from_secs(150);

/// Two connections and a login.
#[derive(Clone, Debug)]
pub(super) struct Api {
    /// Connection for polls, so that these do not hold up other requests.
    pub(super) polls: Channel,
    pub(super) calls: Channel,
    pub(super) login: Login,
}

/// Makes a method of each request.
macro_rules! requests {
    ($($client:ident.$name:ident($request:ty) -> $response:ty;)*) => {
        impl Api {
            $(pub(super) async fn $name(&self, message: $request) -> Result<$response, Failure> {
                let request = self.request(message).await?;
                reply(REPLY_TIMEOUT, self.$client().$name(request)).await
            })*
        }
    };
}

requests! {
    publisher.create_topic(Topic) -> Topic;
    publisher.list_topic_subscriptions(ListTopicSubscriptionsRequest) -> ListTopicSubscriptionsResponse;
    publisher.publish(PublishRequest) -> PublishResponse;
    subscriber.create_subscription(Subscription) -> Subscription;
    subscriber.get_subscription(GetSubscriptionRequest) -> Subscription;
    subscriber.acknowledge(AcknowledgeRequest) -> ();
    subscriber.modify_ack_deadline(ModifyAckDeadlineRequest) -> ();
    subscriber.seek(SeekRequest) -> SeekResponse;
}

impl Api {
    /// Waits for messages. Returns none after this time, or else after a while.
    pub(super) async fn pull(
        &self,
        message: PullRequest,
        wait: Option<Duration>,
    ) -> Result<PullResponse, Failure> {
        let mut request = self.request(message).await?;
        // The server gets the timeout too: it must not hand messages to a poll that nobody awaits.
        wait.into_iter().for_each(|wait| request.set_timeout(wait));
        // Pub/Sub limits the size of a response.
        let client = SubscriberClient::new(self.polls.clone());
        let mut client = client.max_decoding_message_size(usize::MAX);
        reply(POLL_TIMEOUT, client.pull(request)).await
    }

    fn publisher(&self) -> PublisherClient<Channel> {
        PublisherClient::new(self.calls.clone())
    }

    fn subscriber(&self) -> SubscriberClient<Channel> {
        SubscriberClient::new(self.calls.clone())
    }

    async fn request<M>(&self, message: M) -> Result<Request<M>, Failure> {
        let mut request = Request::new(message);
        if let Some(header) = self.login.header().await.map_err(Failure::Login)? {
            request.metadata_mut().insert("authorization", header);
        }
        Ok(request)
    }
}

/// Waits for the response to a request.
async fn reply<R>(
    timeout: Duration,
    response: impl Future<Output = Result<Response<R>, Status>>,
) -> Result<R, Failure> {
    let late = |_| Status::deadline_exceeded(format!("no response within {timeout:?}"));
    Ok(tokio::time::timeout(timeout, response).await.map_err(late)??.into_inner())
}
