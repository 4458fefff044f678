//! fe2o3-amqp: sends a batch before it awaits the confirmations, has a batch of link credit, and
//! accepts every message separately.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::types::definitions::ReceiverSettleMode;
use fe2o3_amqp::types::messaging::{Body, Data, Message, MessageAnnotations};
use fe2o3_amqp::types::primitives::{Binary, Symbol, Timestamp, Value};
use fe2o3_amqp::{Connection, Receiver, Sendable, Sender, Session};
use fe2o3_amqp_cbs::client::CbsClient;
use fe2o3_amqp_cbs::token::CbsToken;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use sluicegate_testkit::servicebus::ServiceBusServer;
use tokio::net::TcpStream;

use crate::turns::{Case, Subject};

const NAME: &str = "raw";
const LATER: &str = "raw-later";
const DELAY_MS: i64 = 900_000;
const HOUR_MS: i64 = 3_600_000;

pub(crate) struct Fe2o3 {
    _connection: ConnectionHandle<()>,
    _session: SessionHandle<()>,
    sender: Sender,
    later: Sender,
    receiver: Receiver,
    body: Vec<u8>,
    batch: usize,
}

impl Fe2o3 {
    /// Connects. The queues must exist.
    pub(crate) async fn open(server: &ServiceBusServer, case: &Case) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await?;
        stream.set_nodelay(true)?;
        let mut connection = Connection::builder()
            .container_id("bench-raw")
            .hostname(Some("127.0.0.1"))
            .scheme("amqp")
            .sasl_profile(SaslProfile::Anonymous)
            .max_frame_size(65_536)
            .idle_time_out(60_000_u32)
            .open_with_stream(stream)
            .await?;
        let mut session = Session::begin(&mut connection).await?;
        let mut cbs = CbsClient::attach(&mut session).await?;
        for name in [NAME, LATER] {
            let resource = format!("amqp://127.0.0.1/{name}");
            let expires = Timestamp::from(now_ms() + HOUR_MS);
            let token =
                CbsToken::new(signature(&resource), "servicebus.windows.net:sastoken", expires);
            cbs.put_token(resource, token).await?;
        }
        let sender = Sender::attach(&mut session, "bench-sender", NAME).await?;
        let later = Sender::attach(&mut session, "bench-later", LATER).await?;
        let receiver = Receiver::builder()
            .name("bench-receiver")
            .source(NAME)
            .receiver_settle_mode(ReceiverSettleMode::Second)
            .credit_mode(CreditMode::Auto(u32::try_from(case.batch)?))
            .attach(&mut session)
            .await?;
        let (body, batch) = (case.body.clone().into_bytes(), case.batch);
        Ok(Self {
            _connection: connection,
            _session: session,
            sender,
            later,
            receiver,
            body,
            batch,
        })
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Signs a resource with the key of the Service Bus double.
fn signature(resource: &str) -> String {
    let encode = |text: &str| -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        let one =
            |byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        text.bytes().map(one).collect()
    };
    let (resource, expiry) = (encode(resource), (now_ms() + HOUR_MS) / 1_000);
    let mut hmac = Hmac::<Sha256>::new_from_slice(b"c2VjcmV0").expect("a key of any length");
    hmac.update(format!("{resource}\n{expiry}").as_bytes());
    let signed = encode(&STANDARD.encode(hmac.finalize().into_bytes()));
    format!(
        "SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn=RootManageSharedAccessKey"
    )
}

async fn send(
    sender: &mut Sender,
    (jobs, batch): (usize, usize),
    body: &[u8],
    delay_ms: Option<i64>,
) -> anyhow::Result<()> {
    for _ in 0..jobs / batch {
        let mut confirms = Vec::with_capacity(batch);
        for _ in 0..batch {
            let data = Body::<Value>::Data(vec![Data(Binary::from(body.to_vec()))].into());
            let message = match delay_ms {
                None => Message::builder().body(data).build(),
                Some(delay_ms) => {
                    let key = Symbol::from("x-opt-scheduled-enqueue-time");
                    let due = Timestamp::from(now_ms() + delay_ms);
                    let annotations = MessageAnnotations::builder().insert(key, due).build();
                    Message::builder().message_annotations(annotations).body(data).build()
                }
            };
            let sendable = Sendable::builder().message(message).build();
            confirms.push(sender.send_batchable(sendable).await?);
        }
        for confirm in confirms {
            confirm.await?.accepted_or("not accepted").map_err(anyhow::Error::msg)?;
        }
    }
    Ok(())
}

impl Subject for Fe2o3 {
    async fn send(&mut self, jobs: usize) -> anyhow::Result<()> {
        send(&mut self.sender, (jobs, self.batch), &self.body, None).await
    }

    async fn receive(&mut self, jobs: usize) -> anyhow::Result<()> {
        for _ in 0..jobs {
            let delivery = self.receiver.recv::<Body<Value>>().await?;
            self.receiver.accept(&delivery).await?;
        }
        Ok(())
    }

    async fn delay(&mut self, jobs: usize) -> anyhow::Result<()> {
        send(&mut self.later, (jobs, self.batch), &self.body, Some(DELAY_MS)).await
    }

    async fn clear(&mut self) -> anyhow::Result<()> {
        // The delayed jobs are in a queue that is never read.
        Ok(())
    }
}
