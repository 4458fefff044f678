//! The AWS SDK: sends, receives and deletes in batches of ten.

use anyhow::Context as _;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, SendMessageBatchRequestEntry};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use crate::turns::{Case, Subject};

/// The longest delay of SQS, in seconds.
const DELAY: i32 = 900;

/// Creates a client configuration with the address of the server and a test login.
pub(crate) fn sdk_config(port: u16) -> SdkConfig {
    let http = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let login = Credentials::new("test", "test", None, None, "bench");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .endpoint_url(format!("http://127.0.0.1:{port}"))
        .http_client(http)
        .credentials_provider(SharedCredentialsProvider::new(login))
        .build()
}

pub(crate) struct Sdk {
    client: Client,
    url: String,
    /// URL of the queue that delayed jobs are sent to.
    later: String,
    body: String,
    batch: usize,
}

impl Sdk {
    pub(crate) async fn open(config: &SdkConfig, case: &Case) -> anyhow::Result<Self> {
        let client = Client::new(config);
        let create = async |name: &str| {
            let created = client.create_queue().queue_name(name).send().await?;
            created.queue_url.context("no address")
        };
        let (url, later) = (create("raw").await?, create("raw-later").await?);
        Ok(Self { client, url, later, body: case.body.clone(), batch: case.batch })
    }

    async fn send(&self, jobs: usize, url: &str, delay: i32) -> anyhow::Result<()> {
        for _ in 0..jobs / self.batch {
            let mut batch = self.client.send_message_batch().queue_url(url);
            for number in 0..self.batch {
                let entry = SendMessageBatchRequestEntry::builder().id(number.to_string());
                batch = batch.entries(entry.message_body(&self.body).delay_seconds(delay).build()?);
            }
            anyhow::ensure!(batch.send().await?.failed.is_empty(), "not sent");
        }
        Ok(())
    }
}

impl Subject for Sdk {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        Self::send(self, jobs, &self.url, 0).await
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        let mut left = jobs;
        while left > 0 {
            let question = self.client.receive_message().queue_url(&self.url);
            let most = i32::try_from(self.batch.min(left))?;
            let question = question.max_number_of_messages(most).wait_time_seconds(20);
            let answer = question.visibility_timeout(300).send().await?;
            let messages = answer.messages.unwrap_or_default();
            if messages.is_empty() {
                continue;
            }
            left -= messages.len();
            let mut batch = self.client.delete_message_batch().queue_url(&self.url);
            for (number, message) in messages.into_iter().enumerate() {
                let entry = DeleteMessageBatchRequestEntry::builder().id(number.to_string());
                let handle = message.receipt_handle.context("no receipt")?;
                batch = batch.entries(entry.receipt_handle(handle).build()?);
            }
            anyhow::ensure!(batch.send().await?.failed.is_empty(), "not deleted");
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        Self::send(self, jobs, &self.later, DELAY).await
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        // SQS purges only once per minute. The delayed jobs are in a queue that is never read.
        Ok(())
    }
}
